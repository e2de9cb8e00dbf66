/* JSON values of any kind: numbers and words as RFC 8259 has them, lists and maps passed over, the place of a fault. */
#include "case.h"
#include "runtime/files/json.h"

#include <stdlib.h>
#include <string.h>

static json_reader reader(const char *text, char *error, size_t error_bytes)
{
    return (json_reader){
        .text = text, .size = strlen(text), .part = "the file", .error = error, .error_bytes = error_bytes};
}

HD_CASE(scalars_come_as_text)
{
    static const char *const words[] = {"0",    "-0",  "12",   "1.5",  "-0.25", "1e-06",
                                        "2E+3", "0e0", "true", "null", "false", "123456789"};
    char error[256] = "";
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        json_reader r = reader(words[i], error, sizeof(error));
        char *text = NULL;
        int quoted = 1;
        assert_int_equal(json_scalar(&r, &text, &quoted), 0);
        assert_string_equal(text, words[i]);
        assert_int_equal(quoted, 0);
        assert_int_equal(json_peek(&r), -1);
        free(text);
    }
    json_reader r = reader(" \"tr\\u00fce\" ,", error, sizeof(error));
    char *text = NULL;
    int quoted = 0;
    assert_int_equal(json_scalar(&r, &text, &quoted), 0);
    assert_string_equal(text, "tr\xc3\xbc"
                              "e");
    assert_int_equal(quoted, 1);
    assert_int_equal(json_peek(&r), ',');
    free(text);
}

HD_CASE(other_words_are_refused)
{
    static const char *const words[] = {"",    "01",  "-",   "+1",  ".5",    "1.",       "1.e3", "1e",
                                        "1e+", "--1", "1-1", "tru", "nulll", "Infinity", "nan",  "]"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char error[256] = "";
        json_reader r = reader(words[i], error, sizeof(error));
        char *text = NULL;
        int quoted = 0;
        assert_int_equal(json_scalar(&r, &text, &quoted), -1);
        assert_null(text);
        assert_non_null(strstr(error, "byte 0 of the file begins no string, number"));
    }
}

HD_CASE(values_are_passed_over)
{
    static const struct {
        const char *text;
        const char *sentence; /* NULL: it is read to the 'x' behind it */
    } cases[] = {
        {"[]x", NULL},
        {"{}x", NULL},
        {"[1, [\"a\", {\"b\": null}], -2.5e3 ]x", NULL},
        {"{\"a\": {\"b\": [true]}, \"c\": \"}\"}x", NULL},
        {"[[[[1]]]]x", NULL},
        {"[[[[[1]]]]]x", "too many lists within lists"},
        {"[1,]", "a comma before ']'"},
        {"[1 2]", "byte 3 of the file is 0x32 where ']' should stand"},
        {"{\"a\" 1}", "where ':' should stand"},
        {"{1: 2}", "where '\"' should stand"},
        {"[1", "the file ends at byte 2 where ']' should stand"},
        {"{\"a\": [1}", "where ']' should stand"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char error[256] = "";
        json_reader r = reader(cases[i].text, error, sizeof(error));
        const int code = json_skip(&r, 4);
        if (cases[i].sentence == NULL) {
            assert_int_equal(code, 0);
            assert_int_equal(json_peek(&r), 'x');
        } else {
            assert_int_equal(code, -1);
            assert_non_null(strstr(error, cases[i].sentence));
        }
    }
}
