/* Loaded before Open MPI's: mpirun is not told that a rank has ended well, as when it does not answer in time. */
#include <stddef.h>

__attribute__((visibility("default"))) int PMIx_Finalize(const void *info, size_t count);

int PMIx_Finalize(const void *info, size_t count)
{
    (void)info;
    (void)count;
    return 0;
}
