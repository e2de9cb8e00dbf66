/* Names by which members of a group tell one another where memory lies: addresses (threads) or offsets in the owner's
 * arena (processes), plus one, so that 0 is none. */
#include "runtime/comm/ground/ground.h"

uint64_t hd_group_export(const hd_group *group, const void *memory, size_t bytes)
{
    uintptr_t address = (uintptr_t)memory;
    if (group->team != NULL) {
        return (uint64_t)address + 1;
    }
    uintptr_t base = (uintptr_t)group->base[group->me];
    size_t arena = group->arena_bytes[group->me];
    if (bytes == 0) {
        return 1;
    }
    return address >= base && bytes <= arena && address - base <= arena - bytes ? (uint64_t)(address - base) + 1 : 0;
}

void *hd_group_import(const hd_group *group, int index, uint64_t name)
{
    if (name == 0) {
        return NULL;
    }
    if (group->team != NULL) {
        return (void *)(uintptr_t)(name - 1);
    }
    return name - 1 < group->arena_bytes[index] ? group->base[index] + (name - 1) : NULL;
}
