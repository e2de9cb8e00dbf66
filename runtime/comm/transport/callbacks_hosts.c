/* Which ranks of a transport sit on one host: everybody introduces itself once. */
#include "runtime/comm/transport/callbacks.h"

#include "runtime/base/hash.h"
#include "runtime/comm/comm_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int hd_host_hash(uint64_t hash[2], const char *const *space, int nspaces)
{
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (got <= 0) {
        return 0;
    }
    hd_hash_mix(hash, boot, (size_t)got);
    for (int i = 0; i < nspaces; i++) {
        struct stat st = {0};
        if (stat(space[i], &st) == 0) {
            hd_hash_mix(hash, &st.st_dev, sizeof st.st_dev);
            hd_hash_mix(hash, &st.st_ino, sizeof st.st_ino);
        }
    }
    return 1;
}

/* What two processes must have in common to share memory: the running kernel, the user, and the namespaces of sockets,
 * process numbers and users. A process that cannot tell sits on a host of its own. */
static void memory_hash(uint64_t hash[2], const uint64_t random[2])
{
    static const char *const space[] = {"/proc/self/ns/net", "/proc/self/ns/pid", "/proc/self/ns/user"};
    const uid_t user = getuid();
    if (hd_host_hash(hash, space, sizeof space / sizeof space[0])) {
        hd_hash_mix(hash, &user, sizeof user);
    } else {
        hd_hash_mix(hash, random, 2 * sizeof *random);
    }
}

heddle_status hd_introduce(hd_introduction *mine, const heddle_comm_options *options)
{
    if (hd_random_bytes(&mine->word[2], 2 * sizeof mine->word[0]) != 0) {
        return hd_fail(HEDDLE_ERR_IO, "no random bytes from the kernel: %s", strerror(errno));
    }
    const uint64_t start[2] = HD_HASH_START;
    memcpy(mine->word, start, sizeof start);
    memory_hash(&mine->word[0], &mine->word[2]);
    mine->word[4] = (uint64_t)(options->force_messages != 0);
    mine->word[5] = (uint64_t)options->pretend_hosts;
    return HEDDLE_OK;
}

heddle_status hd_introductions_agree(const hd_introduction *all, int size)
{
    static const char *const field[] = {"force_messages", "pretend_hosts"};
    for (int r = 1; r < size; r++) {
        for (int f = 0; f < 2; f++) {
            if (all[r].word[4 + f] != all[0].word[4 + f]) {
                return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d opens the communicator with %s = %llu, rank 0 with %llu",
                               r, field[f], (unsigned long long)all[r].word[4 + f],
                               (unsigned long long)all[0].word[4 + f]);
            }
        }
    }
    return HEDDLE_OK;
}

static int same_host(const hd_introduction *a, const hd_introduction *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

int hd_introductions_on_host(const hd_introduction *all, int size, int rank)
{
    int count = 0;
    for (int r = 0; r < size; r++) {
        count += same_host(&all[r], &all[rank]);
    }
    return count;
}

int hd_introductions_meet(const hd_introduction *all, int size, int a, int b, const heddle_comm_options *options)
{
    int hosts = options->pretend_hosts;
    return a == b || (!options->force_messages && same_host(&all[a], &all[b]) &&
                      (hosts <= 0 || hd_pretended_host(a, size, hosts) == hd_pretended_host(b, size, hosts)));
}
