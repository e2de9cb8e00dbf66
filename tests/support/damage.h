/* A library that is preloaded to spoil what the next one gives. */
#ifndef HD_TEST_DAMAGE_H
#define HD_TEST_DAMAGE_H

#include <dlfcn.h>
#include <string.h>

/* The function that would have been called without this library. */
static inline void damage_next(void *function, const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    memcpy(function, &symbol, sizeof symbol);
}
#define NEXT(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (real == NULL) {                                                                                                \
        damage_next(&real, #name);                                                                                     \
    }

#endif
