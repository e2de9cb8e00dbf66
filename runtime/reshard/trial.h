/* Alternatives of a plan, timed against one another: the slowest rank's time counts, so all ranks decide alike. */
#ifndef HD_TRIAL_H
#define HD_TRIAL_H

#include "runtime/reshard/plan.h"

enum {
    HD_TRIAL_WAYS = 16,          /* at most */
    HD_TRIAL_FINALISTS = 5,      /* where there are more ways, so many of them are timed at length */
    HD_TRIAL_ROUNDS = 100,       /* at most */
    HD_TRIAL_MARGIN_PERCENT = 5, /* that a way must save of the rule's time, in three rounds of four */
    HD_TRIAL_LOOKS = 2,          /* at most: a winner that cannot keep its time is compared again */
    /* Executions until the caches are a way's own: plain stores behind non-temporal ones need 3 (2 MB) to 9 (8 MB). */
    HD_SETTLE = 8
};

typedef struct hd_trial hd_trial;

struct hd_trial {
    heddle_reshard *plan, *twin; /* that is decided for; that is timed, may be the same */
    void *src, *dst;             /* of the twin */
    int is_cached;               /* the tensor may lie in the caches, in a state that the way before has left */
    int by_messages;             /* a network may be in it, next to which caches are nothing: few executions do */
    /* what is tried */
    heddle_status (*use)(const hd_trial *trial, heddle_reshard *plan, int way); /* by all ranks in the same order */
    heddle_status (*run)(const hd_trial *trial, int executions, int64_t *ns);   /* of the twin; ns: all together */
    const void *of_use;
    int ways; /* way 0 is the rule's */
    /* what came of it */
    int nfinalists, finalist[HD_TRIAL_FINALISTS]; /* ways, ascending, 0 among them; none: an execution takes too long */
    int64_t said_ns[HD_TRIAL_FINALISTS];          /* median of the rounds */
    double share[HD_TRIAL_FINALISTS];             /* of the rule's time, at most so much in three rounds of four */
    int rounds, looks;
    int64_t alone_ns; /* of the winner, afterwards and for longer */
    int is_steady;    /* alone_ns is about what was said */
};

/* Collective. Leaves any of them in use; adopt uses the winner, in both plans. */
heddle_status hd_trial_run(int *winner, hd_trial *trial);
heddle_status hd_trial_adopt(const hd_trial *trial, int winner);
/* Collective: of each value the largest that a rank has. */
heddle_status hd_trial_largest(heddle_reshard *plan, int64_t *value, int n);

/* The decisions, of times of the slowest rank. Way 0 and the fastest others, ascending; returns how many. */
int hd_trial_finalists(int *out, const int64_t *ns, int ways);
/* round_ns[rounds][ways]: which one wins, 0 unless another is clearly faster. share[ways] as in hd_trial. */
int hd_trial_winner(double *share, const int64_t *round_ns, int rounds, int ways);

#endif
