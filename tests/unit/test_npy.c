/* NumPy array files: headers as NumPy writes them are read, everything else is refused with a sentence. */
#include "case.h"
#include "runtime/files/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct file {
    const char *header;
    size_t header_bytes; /* 0: strlen */
    int version, minor;
    size_t data_bytes;
    const char *says; /* NULL: it is read */
} file;

static heddle_status read_it(npy_array *out, const file *f)
{
    char path[] = "/tmp/heddle-npy-XXXXXX";
    const size_t n = f->header_bytes > 0 ? f->header_bytes : strlen(f->header);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *to = fdopen(fd, "wb");
    fprintf(to, "\x93NUMPY%c%c%c%c", f->version, f->minor, (int)(n % 256), (int)(n / 256));
    if (f->version > 1) {
        fwrite("\0\0", 1, 2, to);
    }
    fwrite(f->header, 1, n, to);
    for (size_t i = 0; i < f->data_bytes; i++) {
        fputc((int)i, to);
    }
    fclose(to);
    const heddle_status st = npy_read(out, path);
    unlink(path);
    return st;
}

HD_CASE(reads_what_numpy_writes)
{
    static const file good[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }    \n", 0, 1, 0, 24, NULL},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", 0, 2, 0, 24, NULL},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (), }", 0, 3, 0, 1, NULL},
        {"{\"shape\": (0, 7), \"descr\": \"<f2\", \"fortran_order\": False}", 0, 1, 0, 0, NULL},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }", 0, 1, 0, 24, NULL}, /* Python 2 */
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        npy_array array;
        if (read_it(&array, &good[i]) != HEDDLE_OK) {
            fail_msg("case %zu: %s", i, heddle_last_error());
        }
        assert_int_equal(array.data_bytes, good[i].data_bytes);
        for (size_t k = 0; k < array.data_bytes; k++) {
            assert_int_equal(((const uint8_t *)array.data)[k], k);
        }
        npy_free(&array);
    }
}

#define ZERO_IN_TYPE "{'descr': '<f4\0x', 'fortran_order': False, 'shape': (2,), }"

HD_CASE(refuses_with_a_sentence)
{
    static const file bad[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 0, 4, 0, 8, "version 4.0"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 0, 1, 1, 8, "version 1.1"},
        {ZERO_IN_TYPE, sizeof(ZERO_IN_TYPE) - 1, 1, 0, 8, "no letter, digit or sign"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", 0, 1, 0, 8, "wants a comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (02,), }", 0, 1, 0, 8, "expected an extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 0, 1, 0, 8, "expected an extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,), }", 0, 1, 0, 8, "expected ','"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,), }", 0, 1, 0, 8, "expected an extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 0, 1, 0, 8, "2^62"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 0, 1, 0, 8, "2^62"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2), }", 0, 1, 0, 8, "more than 8"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,), }", 0, 1, 0, 8, "once each"},
        {"{'descr': '<f4', 'fortran_order': False, }", 0, 1, 0, 8, "once each"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1, }", 0, 1, 0, 8, "a key other than"},
        {"{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (2,), }", 0, 1, 0, 8, "expected ','"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", 0, 1, 0, 8, "True or False"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", 0, 1, 0, 8, "Fortran order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x", 0, 1, 0, 8, "follows the closing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,),, }", 0, 1, 0, 8, "quoted string"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 0, 1, 0, 0, "expected ','"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", 0, 1, 0, 8, "little end first"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", 0, 1, 0, 8, "structured"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 0, 1, 0, 7, "truncated: the header promises 8"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 0, 1, 0, 9, "too long: the header promises 8"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        npy_array array;
        assert_int_equal(read_it(&array, &bad[i]), HEDDLE_ERR_PARSE);
        if (strstr(heddle_last_error(), bad[i].says) == NULL) {
            fail_msg("case %zu: '%s' does not say '%s'", i, heddle_last_error(), bad[i].says);
        }
    }
}

/* A file that ends before its header does, or is none. */
HD_CASE(refuses_beginnings)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } bad[] = {
        {"", 0, "the first 6 bytes of 0 are not its magic"},
        {"\x93NUMP", 5, "the first 6 bytes of 5 are not its magic"},
        {"\x93NUMPY\1\0", 8, "truncated: 8 bytes, the header alone needs more"},
        {"\x93NUMPY\2\0\10\0\0", 11, "truncated: 11 bytes, the header alone needs more"},
        {"\x93NUMPY\2\0\0\0\0\1", 12, "a header of 16777216 bytes, at most"},
        {"\x93NUMPY\1\0\10\0{'d", 13, "the header has 8 bytes, the file ends after 3 of them"},
    };
    npy_array array;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char path[] = "/tmp/heddle-npy-XXXXXX";
        const int fd = mkstemp(path);
        assert_true(fd >= 0 && write(fd, bad[i].bytes, bad[i].n) == (ssize_t)bad[i].n);
        close(fd);
        const heddle_status st = npy_read(&array, path);
        unlink(path);
        if (st != HEDDLE_ERR_PARSE || strstr(heddle_last_error(), bad[i].says) == NULL) {
            fail_msg("case %zu: status %d, '%s' does not say '%s'", i, (int)st, heddle_last_error(), bad[i].says);
        }
    }
    assert_int_equal(npy_read(&array, "/dev/null"), HEDDLE_ERR_PARSE);
    assert_non_null(strstr(heddle_last_error(), "/dev/null: not a regular file"));
}
