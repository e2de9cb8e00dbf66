/* Standard error. The ranks of a launcher's job share it: every rank's own complaint gets there, with its rank in
 * front, and what all of them have to say is said once.
 */
#include "launch.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LINGER_MS = 300 };

/* When this process, a rank among others, said something first; 0: it did not. */
static int64_t said_ms;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint64_t mix(uint64_t hash, const char *text)
{
    for (; text != NULL && *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return (hash ^ '\n') * 0x100000001b3u;
}

/* Has no other rank of this job the same to say? Who speaks holds an abstract Unix address (no name in any file system)
 * made of the job's names and the sentence, until it ends; cli_linger gives the others the time to find it. Where that
 * cannot be told the sentence comes more often. */
static int is_first(const char *sentence)
{
    static const char *const names[] = {"HEDDLE_KEY",     "MASTER_PORT",  "TORCHELASTIC_RUN_ID",
                                        "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID",
                                        "PMI_JOBID"};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t hash = mix(0xcbf29ce484222325u, sentence);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        hash = mix(hash, getenv(names[i]));
    }
    const int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "heddle.%lu.said.%016llx",
                                (unsigned long)getuid(), (unsigned long long)hash);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) == 0) {
        return 1;
    }
    close(fd);
    return 0;
}

const char *cli_own_say(char *own, size_t own_bytes, const char *sentence)
{
    int rank = 0;
    const int ranks = cli_job_ranks(&rank);
    own[0] = '\0';
    if (ranks == 1) {
        return sentence;
    }
    if (rank >= 0) {
        snprintf(own, own_bytes, "rank %d: ", rank);
        sentence += strncmp(sentence, own, strlen(own)) == 0 ? strlen(own) : 0;
    }
    if (!is_first(sentence)) {
        return NULL;
    }
    said_ms = now_ms();
    return sentence;
}

void cli_linger(void)
{
    const int64_t left_ms = said_ms == 0 ? 0 : said_ms + LINGER_MS - now_ms();
    if (left_ms > 0) {
        fflush(NULL);
        usleep((useconds_t)(left_ms * 1000));
    }
}
