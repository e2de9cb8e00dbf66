/* The one hash: FNV-1a as published, whatever the pieces. */
#include "case.h"

#include "runtime/base/hash.h"

#include <string.h>

HD_CASE(published_values)
{
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {{"", 0xcbf29ce484222325u}, {"a", 0xaf63dc4c8601ec8cu}, {"foobar", 0x85944171f73967e8u}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_true(hd_hash(HD_HASH_BASIS, known[i].text, strlen(known[i].text)) == known[i].hash);
    }
}

HD_CASE(pieces_make_the_whole)
{
    const char text[] = "a line in pieces";
    uint64_t two[2] = HD_HASH_START, whole[2] = HD_HASH_START;
    uint64_t hash = hd_hash(HD_HASH_BASIS, text, 7);
    assert_true(hd_hash(hash, text + 7, sizeof text - 7) == hd_hash(HD_HASH_BASIS, text, sizeof text));
    hd_hash_mix(whole, text, sizeof text);
    hd_hash_mix(two, text, 5);
    hd_hash_mix(two, text + 5, sizeof text - 5);
    assert_memory_equal(two, whole, sizeof two);
    assert_true(whole[0] == hd_hash(HD_HASH_BASIS, text, sizeof text));
}
