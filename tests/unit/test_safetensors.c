/* safetensors: values of the three float types, and a sentence for everything malformed. */
#include "case.h"
#include "runtime/files/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file on the heap, exactly as long as it is. */
static uint8_t *make(size_t *size, const char *header, const void *data, size_t data_bytes)
{
    const size_t length = strlen(header);
    uint8_t *bytes = malloc(8 + length + data_bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    if (data_bytes > 0) {
        memcpy(bytes + 8 + length, data, data_bytes);
    }
    *size = 8 + length + data_bytes;
    return bytes;
}

HD_CASE(reads_float_types)
{
    static const float wanted[6] = {1.0F, -2.5F, 0.0F, 65504.0F, -0x1p-24F, 3.0F};
    static const uint16_t half[6] = {0x3c00, 0xc100, 0x0000, 0x7bff, 0x8001, 0x4200};
    static const uint16_t bf16[2] = {0x3f80, 0xc020};
    uint8_t data[24 + 12 + 4 + 8] = {0};
    char error[512] = "";
    size_t size = 0;
    safetensors_file file;
    float out[6];
    const int64_t matrix[2] = {2, 3}, vector[1] = {2};
    memcpy(data, wanted, 24);
    memcpy(data + 24, half, 12);
    memcpy(data + 36, bf16, 4);
    uint8_t *bytes = make(&size,
                          "{\"__metadata__\": {\"format\": \"pt\", \"note\": \"a \\\"quote\\\" and \\u00e9\"},\n"
                          " \"b.half\": {\"shape\": [2, 3], \"dtype\": \"F16\", \"data_offsets\": [24, 36]},\n"
                          " \"a.full\": {\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\n"
                          " \"c.brain\": {\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[36,40]},\n"
                          " \"d.other\": {\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[40,48]},\n"
                          " \"e.none\": {\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[24,24]},\n"
                          " \"f.none\": {\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[0],\"data_offsets\":[48,48]},\n"
                          " \"\\ud83e\\uddf5\": {\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}   ",
                          data, sizeof(data));
    assert_int_equal(safetensors_parse(&file, bytes, size, error, sizeof(error)), 0);
    assert_int_equal(file.count, 7);
    assert_non_null(safetensors_find(&file, "\xf0\x9f\xa7\xb5"));
    assert_int_equal(safetensors_read_f32(out, &file, "a.full", 2, matrix, error, sizeof(error)), 0);
    assert_memory_equal(out, wanted, sizeof(wanted));
    assert_int_equal(safetensors_read_f32(out, &file, "b.half", 2, matrix, error, sizeof(error)), 0);
    assert_memory_equal(out, wanted, sizeof(wanted));
    assert_int_equal(safetensors_read_f32(out, &file, "c.brain", 1, vector, error, sizeof(error)), 0);
    assert_true(out[0] == 1.0F && out[1] == -2.5F);
    assert_int_equal(safetensors_read_f32(out, &file, "d.other", 0, NULL, error, sizeof(error)), -1);
    assert_non_null(strstr(error, "I64"));
    assert_int_equal(safetensors_read_f32(out, &file, "a.full", 1, vector, error, sizeof(error)), -1);
    assert_non_null(strstr(error, "[2, 3]"));
    assert_non_null(strstr(error, "[2]"));
    assert_int_equal(safetensors_read_f32(out, &file, "e", 1, vector, error, sizeof(error)), -1);
    assert_non_null(strstr(error, "missing"));
    safetensors_close(&file);
    free(bytes);
}

#define PART(place, shape) "{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" place "]}"
#define ONE "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static const struct {
    const char *header, *says;
} bad[] = {
    {"", "'{'"},
    {"[]", "'{'"},
    {"{", "ends"},
    {"{\"a\"", "':'"},
    {"{\"a\": 1}", "'{'"},
    {"{\"a\": {}}", "lacks its dtype"},
    {"{\"a\": {\"dtype\":\"F32\"}}", "lacks its shape"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2]}}", "lacks its data_offsets"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "one number"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", "more than 2"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "lies at 8 to 0"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}", "lies at 1 to 9"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "3 elements of F32, but 8 bytes"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", "but 7 bytes"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "whole number"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", "2^63"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", "2^63 elements"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}}", "more than 8"},
    {"{\"a\": {\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "twice"},
    {"{\"a\": {\"colour\":\"F32\"}}", "colour"},
    {"{\"a\": {\"dtype\":7}}", "'\"'"},
    {"{\"a\": " ONE ", \"a\": " ONE "}", "there twice"},
    {"{\"a\": " ONE "} x", "behind its end"},
    {"{\"a\": " ONE, "ends"},
    {"{\"a\\x\": " ONE "}", "escape"},
    {"{\"a\\u12\": " ONE "}", "hexadecimal"},
    {"{\"a\n\": " ONE "}", "control character"},
    {"{\"a", "does not end"},
    {"{\"a\\", "does not end"},
    /* JSON and nothing beside it. */
    {"{\"a\": " ONE ",}", "a comma before '}'"},
    {"{,}", "'\"'"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],}}", "a comma before '}'"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]}}", "whole number"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", "whole number"},
    {"{\"a\": {\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "']'"},
    {"{\"__metadata__\": {\"a\": \"b\",}, \"a\": " ONE "}", "a comma before '}'"},
    {"{\"__metadata__\": {}, \"__metadata__\": {}, \"a\": " ONE "}", "twice"},
    {" {\"a\": " ONE "}", "0x20 where '{'"},
    {"{\"a\\u0000b\": " ONE "}", "zero byte"},
    {"{\"a\\ud83e\": " ONE "}", "one half of a pair"},
    {"{\"a\\udd83\": " ONE "}", "one half of a pair"},
    {"{\"a\\ud83e\\u0041\": " ONE "}", "one half of a pair"},
    {"{\"a\xff\": " ONE "}", "not UTF-8"},
    /* The tensors cover the data, each byte once. */
    {"{\"a\": " ONE ", \"b\": " ONE "}", "tensor 'b' at 0 to 8 of the data overlaps tensor 'a', which ends at 8"},
    {"{\"b\": " PART("0,8", "2") ", \"a\": " PART("4,8", "1") "}",
     "tensor 'a' at 4 to 8 of the data overlaps tensor 'b'"},
    {"{\"a\": " PART("0,4", "1") "}", "bytes 4 to 8 of the data, behind the last tensor"},
    {"{\"a\": " PART("4,8", "1") "}", "bytes 0 to 4 of the data, before tensor 'a'"},
    {"{\"a\": " PART("0,2", "1,0") "}", "0 elements of F32, but 2 bytes"},
    {"{}", "bytes 0 to 8 of the data"},
    {"{\"a\": {\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,8]}}", "2 elements of I64, but 8 bytes"},
    {"{\"__metadata__\": [1]}", "'{'"},
    {"{\"__metadata__\": {\"a\": 1}}", "'\"'"},
};

HD_CASE(refuses_with_a_sentence)
{
    const uint8_t data[8] = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char error[512] = "";
        size_t size = 0;
        safetensors_file file;
        uint8_t *bytes = make(&size, bad[i].header, data, sizeof(data));
        assert_int_equal(safetensors_parse(&file, bytes, size, error, sizeof(error)), -1);
        if (strstr(error, bad[i].says) == NULL) {
            fail_msg("case %zu: '%s' does not say '%s'", i, error, bad[i].says);
        }
        safetensors_close(&file);
        free(bytes);
    }
}

HD_CASE(refuses_wrong_lengths)
{
    char error[512] = "";
    safetensors_file file;
    uint8_t bytes[16];
    for (size_t size = 0; size < sizeof(bytes); size++) { /* the length says 2^64 - 1 */
        memset(bytes, 0xff, sizeof(bytes));
        assert_int_equal(safetensors_parse(&file, bytes, size, error, sizeof(error)), -1);
        safetensors_close(&file);
    }
    assert_non_null(strstr(error, "18446744073709551615"));
}
