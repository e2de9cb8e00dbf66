/* Ranks that stand still: what each one that waits says of itself, and whether some of them wait for one another for
 * ever.
 *
 * A rank says whom it waits for: any of them may let it go on, nobody else. So where all ranks that can be reached from
 * this one, by going from each to those that it waits for, stand still at the same moment, none of them ever goes on.
 * That they did so at the same moment is certain when each is in the same turn before and after it, and has looked for
 * what it waits for in vain since: one pass notes the turns, a later one how often each has looked, and a third one
 * wants two looks more, the second of which has begun behind the first pass.
 */
#include "runtime/comm/ground/ground.h"

#include <stdio.h>
#include <string.h>

enum { LOOKS = 2, SLOW_LOOKS = 50, WORD = sizeof(uint64_t) };

enum { NOTED_NOTHING, NOTED_TURNS, NOTED_LOOKS }; /* hd_group.suspicion */

/* --- what this rank says ------------------------------------------------------------------------------------------ */

static void write_text(hd_standing *own, const char *text)
{
    char padded[HD_STAND_BYTES] = "";
    hd_copy_text(padded, sizeof padded, text);
    for (size_t i = 0; i < HD_STAND_BYTES / WORD; i++) {
        uint64_t word;
        memcpy(&word, padded + i * WORD, WORD);
        atomic_store_explicit(&own->text[i], word, memory_order_relaxed);
    }
}

static void write_standing(hd_standing *own, const hd_stand *stand)
{
    atomic_fetch_add(&own->turn, 1);
    write_text(own, stand->text);
    for (int i = 0; i < stand->npeers; i++) {
        atomic_store(&own->peer[i], stand->peer[i]);
    }
    atomic_store(&own->is_slow, stand->is_slow);
    atomic_store(&own->npeers, stand->npeers);
    atomic_fetch_add(&own->turn, 1);
}

void hd_group_move_on(hd_group *group)
{
    if (group->stands) {
        group->stands = 0;
        group->suspicion = NOTED_NOTHING;
        write_standing(&group->control[group->me]->standing, &(hd_stand){.npeers = 0});
    }
}

/* --- what the others say ------------------------------------------------------------------------------------------ */

/* Of one rank, at one moment. npeers 0: it goes on. */
typedef struct seen {
    uint64_t turn, looks;
    int npeers, is_slow;
    int peer[HD_STAND_PEERS];
} seen;

static seen look_at(hd_group *group, int index)
{
    hd_standing *s = &group->control[index]->standing;
    seen out = {.turn = atomic_load(&s->turn)};
    out.looks = atomic_load(&s->looks);
    out.is_slow = atomic_load(&s->is_slow);
    out.npeers = atomic_load(&s->npeers);
    for (int i = 0; i < out.npeers; i++) {
        out.peer[i] = atomic_load(&s->peer[i]);
    }
    if (out.turn % 2 != 0 || atomic_load(&s->turn) != out.turn || hd_group_left(group, index)) {
        out.npeers = 0;
    }
    return out;
}

static void read_text(hd_group *group, int index, char *out)
{
    hd_standing *s = &group->control[index]->standing;
    for (size_t i = 0; i < HD_STAND_BYTES / WORD; i++) {
        uint64_t word = atomic_load_explicit(&s->text[i], memory_order_relaxed);
        memcpy(out + i * WORD, &word, WORD);
    }
    out[HD_STAND_BYTES - 1] = '\0';
}

int hd_group_stands(hd_group *group, int index)
{
    return look_at(group, index).npeers > 0;
}

void hd_group_say_standing(char *out, size_t bytes, hd_group *group, int index)
{
    char text[HD_STAND_BYTES];
    out[0] = '\0';
    if (index >= 0 && look_at(group, index).npeers > 0) {
        read_text(group, index, text);
        snprintf(out, bytes, "; rank %d is in %s", group->rank[index], text);
    }
}

/* --- do they wait for one another? -------------------------------------------------------------------------------- */

typedef struct pass {
    hd_group *group;
    int count;   /* of group->suspect: reached so far */
    int matches; /* what was noted before, or what is to be noted now */
    int is_sure; /* all have looked often enough since */
} pass;

static void enter(pass *p, int index)
{
    hd_group *group = p->group;
    for (int i = 0; i < p->count; i++) {
        if (group->suspect[i].index == index) {
            return;
        }
    }
    group->suspect[p->count++].index = index;
}

/* The place at `at` of those that were reached. 0: it goes on. */
static int visit(pass *p, int at)
{
    hd_group *group = p->group;
    hd_suspect *s = &group->suspect[at];
    const seen now = look_at(group, s->index);
    const uint64_t wanted = now.is_slow ? SLOW_LOOKS : LOOKS;
    p->matches &= group->suspicion != NOTED_NOTHING && s->noted == s->index && s->turn == now.turn;
    p->is_sure &= now.looks >= s->looks + wanted;
    if (group->suspicion != NOTED_LOOKS || !p->matches) {
        s->looks = now.looks;
    }
    s->noted = s->index;
    s->turn = now.turn;
    for (int i = 0; i < now.npeers; i++) {
        enter(p, now.peer[i]);
    }
    return now.npeers > 0;
}

/* Always in the order in which they are reached, so that places stay as long as turns do. */
static int are_stuck(pass *p)
{
    hd_group *group = p->group;
    enter(p, group->me);
    for (int at = 0; at < p->count; at++) {
        /* the first of them decides */
        if (!visit(p, at) || group->suspect[at].index < group->me) {
            group->suspicion = NOTED_NOTHING;
            return 0;
        }
    }
    if (group->suspicion == NOTED_LOOKS && p->matches) {
        return p->is_sure;
    }
    group->suspicion = p->matches ? NOTED_LOOKS : NOTED_TURNS;
    return 0;
}

/* This rank, and the first one that is in something else. */
static heddle_status tell(const pass *p)
{
    hd_group *group = p->group;
    char mine[HD_STAND_BYTES], theirs[HD_STAND_BYTES], why[HD_WHY_BYTES];
    int other = -1;
    read_text(group, group->me, mine);
    for (int i = 1; i < p->count; i++) {
        const int index = group->suspect[i].index;
        read_text(group, index, theirs);
        if (strcmp(mine, theirs) != 0 && (other < 0 || index < other)) {
            other = index;
        }
    }
    other = other < 0 ? group->suspect[p->count - 1].index : other;
    read_text(group, other, theirs);
    snprintf(why, sizeof why, "rank %d is in %s, while rank %d is in %s: they wait for one another", group->rank[other],
             theirs, group->rank[group->me], mine);
    hd_group_raise(group, HEDDLE_ERR_MISMATCH, why);
    return hd_group_check(group);
}

heddle_status hd_group_stand(hd_group *group, const hd_stand *stand)
{
    hd_standing *own = &group->control[group->me]->standing;
    if (stand->npeers == 0) {
        hd_group_move_on(group);
        return HEDDLE_OK;
    }
    if (group->stands && group->stand_key == stand->key) {
        atomic_fetch_add(&own->looks, 1);
    } else {
        group->stands = 1;
        group->stand_key = stand->key;
        write_standing(own, stand);
    }
    pass p = {.group = group, .matches = 1, .is_sure = 1};
    return are_stuck(&p) ? tell(&p) : HEDDLE_OK;
}
