#include "case.h"
#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <malloc.h>
#include <string.h>

HD_CASE(names_every_status)
{
    assert_string_equal(heddle_status_name(HEDDLE_ERR_MISMATCH), "HEDDLE_ERR_MISMATCH");
    assert_string_equal(heddle_status_name((heddle_status)999), "HEDDLE_UNKNOWN");
}

HD_CASE(keeps_the_last_sentence)
{
    assert_string_equal(heddle_last_error(), "");
    assert_int_equal(hd_fail(HEDDLE_ERR_ARG, "wanted %d, got %d", 3, 4), HEDDLE_ERR_ARG);
    heddle_ignore(hd_fail_prefix(HEDDLE_ERR_ARG, "file.yaml:%d", 7));
    assert_string_equal(heddle_last_error(), "file.yaml:7: wanted 3, got 4");
}

HD_CASE(programs_write_a_sentence_too)
{
    assert_int_equal(heddle_set_error(HEDDLE_ERR_IO, "%d of %d bytes", 3, 4), HEDDLE_ERR_IO);
    assert_int_equal(heddle_set_error(HEDDLE_ERR_IO, "input: %s", heddle_last_error()), HEDDLE_ERR_IO);
    assert_string_equal(heddle_last_error(), "input: 3 of 4 bytes");
}

HD_CASE(a_sentence_is_one_line_of_text)
{
    (void)hd_fail(HEDDLE_ERR_ARG, "rank %d gave up: %s", 1, "\x1b[2Ja\nb \xff caf\xc3\xa9");
    assert_string_equal(heddle_last_error(), "rank 1 gave up: \\x1b[2Ja\\x0ab \\xff caf\xc3\xa9");
    heddle_ignore(hd_fail_prefix(HEDDLE_ERR_ARG, "again")); /* is shown once */
    assert_string_equal(heddle_last_error(), "again: rank 1 gave up: \\x1b[2Ja\\x0ab \\xff caf\xc3\xa9");
}

static void same(const char *got, const char *wanted)
{
    assert_string_equal(got, wanted);
}

HD_CASE(what_is_cut_says_so)
{
    char room[12] = "";
    hd_copy_text(room, sizeof room, "eleven byte");
    same(room, "eleven byte");
    hd_copy_text(room, sizeof room, "twelve bytes");
    same(room, "twelve b...");
    hd_copy_text(room, sizeof room, "twelve \xc3\xb6\xc3\xb6 bytes"); /* in no letter's middle */
    same(room, "twelve ...");
    hd_copy_text(room, 3, "twelve");
    same(room, "..");
    hd_copy_text(room, sizeof room, "first");
    hd_add_text(room, sizeof room, "; last");
    same(room, "first; last");
    hd_add_text(room, sizeof room, "; end");
    same(room, "fir...; end");
    hd_add_text(room, sizeof room, "no room for both");
    same(room, "no room ...");
}

HD_CASE(long_sentences_are_whole_or_say_so)
{
    char text[HD_SENTENCE_BYTES + 100], path[1500];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    heddle_ignore(hd_fail(HEDDLE_ERR_IO, "%s", text));
    assert_int_equal(strlen(heddle_last_error()), HD_SENTENCE_BYTES - 1);
    same(heddle_last_error() + HD_SENTENCE_BYTES - 6, "xx...");
    text[4000] = '\0';
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    heddle_ignore(hd_fail(HEDDLE_ERR_IO, "%s", text));
    heddle_ignore(hd_fail_prefix(HEDDLE_ERR_IO, "%s:7", path));
    assert_int_equal(strlen(heddle_last_error()), 1499 + 4 + 4000);
    same(heddle_last_error() + 1499 + 4, text);
    const hd_sentence kept = hd_sentence_keep();
    heddle_ignore(hd_sentence_say(&kept, HEDDLE_ERR_IO));
    same(heddle_last_error() + 1499 + 4, text);
}

static heddle_status says_much(heddle_comm *comm, void *arg)
{
    (void)comm;
    return heddle_set_error(HEDDLE_ERR_IO, "%s", (const char *)arg);
}

HD_CASE(what_a_rank_said_is_cut_visibly)
{
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    HD_FAILS(HEDDLE_ERR_IO, heddle_run_ranks(2, "threads", says_much, text));
    const size_t bytes = strlen(heddle_last_error());
    assert_true(bytes > 1000 && bytes < sizeof text);
    same(heddle_last_error() + bytes - 5, "xx...");
}

HD_CASE(a_kept_sentence_outlasts_others)
{
    heddle_ignore(hd_fail(HEDDLE_ERR_IO, "what comes first"));
    const hd_sentence kept = hd_sentence_keep();
    heddle_ignore(hd_fail(HEDDLE_ERR_ARG, "what fails on the way out"));
    assert_int_equal(hd_sentence_say(&kept, HEDDLE_ERR_IO), HEDDLE_ERR_IO);
    assert_string_equal(heddle_last_error(), "what comes first");
}

/* Too large for the allocator's caches, which count as used. A sanitizer's says 0 twice, but looks itself. */
HD_CASE(the_first_failure_stays)
{
    hd_broken broken = {0};
    HD_OK(hd_broken_say(&broken));
    hd_broken_keep(&broken, hd_fail(HEDDLE_ERR_TIMEOUT, "rank 3 is late"));
    hd_broken_keep(&broken, hd_fail(HEDDLE_ERR_PEER, "rank 3 gave up"));
    HD_FAILS(HEDDLE_ERR_TIMEOUT, hd_broken_say(&broken));
    assert_string_equal(heddle_last_error(), "rank 3 is late");
}

HD_CASE(frees_each_of_a_list)
{
    void *part[3] = {NULL};
    const size_t before = mallinfo2().uordblks;
    HD_OK(hd_alloc(&part[0], 1, 5000, "a test"));
    HD_OK(hd_alloc(&part[2], 1, 10000, "a test"));
    HD_FREE_ALL(part[0], part[1], part[2]);
    assert_int_equal(mallinfo2().uordblks, before);
}

HD_CASE(refuses_the_nth_allocation)
{
    void *memory = NULL;
    hd_alloc_fail_at(2);
    HD_OK(hd_alloc(&memory, 1, 8, "a test"));
    hd_free(memory);
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_alloc(&memory, 1, 8, "a test"));
    assert_non_null(strstr(heddle_last_error(), "a test"));
    HD_OK(hd_alloc(&memory, 1, 8, "a test"));
    hd_free(memory);
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_alloc(&memory, SIZE_MAX / 2, 8, "an overflow"));
}

HD_CASE(says_how_large_structs_are)
{
    assert_int_equal(heddle_struct_bytes("heddle_shape"), sizeof(heddle_shape));
    assert_int_equal(heddle_struct_bytes("heddle_tensor"), sizeof(heddle_tensor));
    assert_int_equal(heddle_struct_bytes("heddle_shap"), 0);
}
