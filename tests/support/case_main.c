/* The main of test programs that have none: all their cases, or those that the argument selects. */
#include "case.h"

int main(int argc, char **argv)
{
    return hd_run_cases(HD_CASE_SECONDS, argc, argv);
}
