/* What reaches a terminal, and what reaches JSON. */
#include "case.h"

#include "planner/report/text.h"
#include "runtime/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

HD_CASE(shows_no_control_bytes)
{
    static const char *const known[][2] = {
        {"plain text, \\x20 and quotes '\"", "plain text, \\x20 and quotes '\""},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\xa7\xb5", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\xa7\xb5"},
        {"\x1b[31m\a\n\t\r\x7f", "\\x1b[31m\\x07\\x0a\\x09\\x0d\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"},                            /* CSI of ISO 8859 */
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"},          /* writes backwards */
        {"\x9b\xff\xc3", "\\x9b\\xff\\xc3"},          /* no UTF-8 */
        {"\xc0\x8a", "\\xc0\\x8a"},                   /* a newline in two bytes */
        {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},          /* and U+009B in three */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* half of a pair */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond Unicode */
        {"\xe2\x82", "\\xe2\\x82"},                   /* cut off */
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        char out[256];
        assert_int_equal(utf8_show(out, sizeof(out), known[i][0]), strlen(known[i][0]));
        assert_string_equal(out, known[i][1]);
        for (size_t room = 1; room < sizeof(out); room++) { /* cut to fit, between characters */
            char *exact = malloc(room);
            (void)utf8_show(exact, room, known[i][0]);
            const size_t n = strlen(exact);
            assert_true(n < room && strncmp(exact, known[i][1], n) == 0);
            assert_true(n == strlen(known[i][1]) || n + 4 >= room);
            free(exact);
        }
    }
}

HD_CASE(writes_json_strings)
{
    static const char *const known[][2] = {
        {"a \"b\" \\c", "\"a \\\"b\\\" \\\\c\""},
        {"\x1b\n\x7f", "\"\\u001b\\u000a\\u007f\""},
        {"\xc2\x9b\xc3\xa9", "\"\\u009b\xc3\xa9\""},
        {"\xff\x9b", "\"\\u00ff\\u009b\""},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        report_json_text(file, known[i][0]);
        fclose(file);
        assert_string_equal(text, known[i][1]);
        free(text);
    }
}
