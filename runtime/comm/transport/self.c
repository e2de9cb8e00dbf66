/* One rank alone. */
#include "runtime/comm/transport/transport.h"

heddle_status hd_open_self(heddle_comm **out, const heddle_comm_options *options, const char *why)
{
    heddle_status st = HEDDLE_OK;
    hd_team *team = NULL;
    hd_group *group = NULL;
    HD_TRY(hd_team_create(&team, 1));
    HD_TRY(hd_group_of_team(&group, team, 0));
    const hd_comm_parts parts = {
        .name = "self", .why = why, .rank = 0, .size = 1, .ops = &hd_local_ops, .group = group, .options = options};
    HD_TRY(hd_comm_new(out, &parts));
out:
    hd_team_release(team);
    return st;
}

static heddle_status open_self(heddle_comm **out, const heddle_comm_options *options)
{
    return hd_open_self(out, options, NULL);
}

const hd_transport hd_transport_self = {.name = "self", .open = open_self};
