/* The transports of this library, one line each. */
#include "runtime/comm/transport/transport.h"

#include <stdio.h>
#include <string.h>

/* X(NAME): hd_transport_NAME. */
#define TRANSPORTS(X)                                                                                                  \
    X(self)                                                                                                            \
    X(threads)                                                                                                         \
    X(shm)                                                                                                             \
    X(tcp)                                                                                                             \
    X(mpi)                                                                                                             \
    X(auto)

#define DECLARE(name) extern const hd_transport hd_transport_##name;
#define POINT(name) &hd_transport_##name,
TRANSPORTS(DECLARE)
static const hd_transport *const transports[] = {TRANSPORTS(POINT)};

enum { NTRANSPORTS = sizeof transports / sizeof transports[0] };

const hd_transport *hd_transport_find(const char *name)
{
    for (size_t i = 0; i < NTRANSPORTS; i++) {
        if (strcmp(transports[i]->name, name) == 0) {
            return transports[i];
        }
    }
    return NULL;
}

void hd_transport_names(char *text, size_t bytes, hd_transport_list list)
{
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < NTRANSPORTS && at < bytes; i++) {
        const hd_transport *t = transports[i];
        if (list == HD_TRANSPORTS_TO_OPEN ? t->open != NULL : t->run != NULL) {
            at += (size_t)snprintf(text + at, bytes - at, "%s%s", at > 0 ? ", " : "", t->name);
        }
    }
}
