/* One edge per pair of layouts, shared by all stages that are entered over it. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "session_internal.h"

#include <string.h>

/* What this rank sends, by the index algebra: independent of what the plan will count while it moves. */
static heddle_status planned_bytes(hd_session_edge *edge, const heddle_session *session,
                                   const heddle_reshard_line *line)
{
    void *sends = NULL;
    int count = 0;
    const int capacity = heddle_mesh_size(&line->mesh);
    heddle_status st;
    HD_TRY(hd_alloc(&sends, (size_t)capacity, sizeof(heddle_peer_bytes), "the bytes per peer of a switch"));
    HD_TRY(heddle_reshard_sends(sends, capacity, &count, line, session->rank));
    edge->bytes_planned = 0;
    for (int i = 0; i < count && i < capacity; i++) {
        edge->bytes_planned += ((const heddle_peer_bytes *)sends)[i].bytes;
    }
out:
    hd_free(sends);
    return st;
}

/* Something failed on this rank alone, before the others could be asked: they must not wait for it. */
static heddle_status tell(const heddle_session *session, heddle_status st)
{
    return st == HEDDLE_OK ? st : hd_comm_abort_with(session->comm, st);
}

heddle_status hd_session_side_make(hd_session_side *out, const heddle_session *session, const heddle_layout *layout)
{
    const heddle_shape *shape = &session->info.shape;
    heddle_status st;
    out->layout = *layout;
    HD_TRY(heddle_layout_box(&out->box, shape, &session->info.mesh, layout, session->rank));
    heddle_box_strides(out->stride_elems, &out->box, NULL);
    out->elems = heddle_box_elems(&out->box);
    out->bytes = (size_t)out->elems * session->elem_bytes;
out:
    return st;
}

static heddle_status describe_edge(hd_session_edge *edge, const heddle_session *session)
{
    heddle_reshard_line line;
    char text[HEDDLE_LINE_BYTES];
    heddle_status st;
    memset(&line, 0, sizeof(line));
    line.shape = session->info.shape;
    line.mesh = session->info.mesh;
    line.from = edge->from.layout;
    line.to = edge->to.layout;
    HD_TRY(heddle_reshard_format(text, sizeof(text), &line));
    HD_TRY(hd_strdup(&edge->line, text));
    HD_TRY(planned_bytes(edge, session, &line));
out:
    return st;
}

static heddle_status make_reshard(hd_session_edge *edge, heddle_session *session)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_reshard_options options;
    heddle_status st;
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_PEER; /* hd_session_source and _result see to it */
    options.space = session->space;
    options.device = session->device;
    HD_TRY(heddle_reshard_create(&edge->reshard, session->comm, &session->info.shape, &session->info.mesh,
                                 &edge->from.layout, &edge->to.layout, &options));
    HD_TRY(heddle_reshard_get_info(&info, edge->reshard));
    edge->path = info.path;
    edge->bytes_messages = info.bytes_messages;
    session->counters.workspace_bytes += info.workspace_bytes;
out:
    return st;
}

static void edge_free(hd_session_edge *edge)
{
    if (edge != NULL) {
        heddle_reshard_destroy(edge->reshard);
        hd_free(edge->line);
        hd_free(edge);
    }
}

static heddle_status describe(hd_session_edge **out, heddle_session *session, const heddle_layout *from,
                              const heddle_layout *to)
{
    heddle_status st;
    HD_TRY(hd_alloc((void **)out, 1, sizeof(**out), "a session's edge"));
    HD_TRY(hd_session_side_make(&(*out)->from, session, from));
    HD_TRY(hd_session_side_make(&(*out)->to, session, to));
    (*out)->keeps = heddle_layout_equal(from, to, &session->info.mesh);
    (*out)->line = NULL;
    st = (*out)->keeps ? HEDDLE_OK : describe_edge(*out, session);
out:
    return st;
}

heddle_status hd_session_edge_get(hd_session_edge **out, heddle_session *session, const heddle_layout *from,
                                  const heddle_layout *to)
{
    const heddle_mesh *mesh = &session->info.mesh;
    hd_session_edge *edge = NULL;
    heddle_status st;
    for (int i = 0; i < session->nedges; i++) {
        if (heddle_layout_equal(&session->edges[i]->from.layout, from, mesh) &&
            heddle_layout_equal(&session->edges[i]->to.layout, to, mesh)) {
            *out = session->edges[i];
            return HEDDLE_OK;
        }
    }
    HD_TRY(tell(session, hd_grow((void **)&session->edges, &session->edges_capacity, session->nedges,
                                 sizeof(*session->edges), "a session's edges")));
    HD_TRY(tell(session, describe(&edge, session, from, to)));
    if (!edge->keeps && !session->dry_run) {
        HD_TRY(make_reshard(edge, session));
    }
    *out = session->edges[session->nedges++] = edge;
    edge = NULL;
out:
    edge_free(edge);
    return st;
}

void hd_session_edges_free(heddle_session *session)
{
    for (int i = 0; i < session->nedges; i++) {
        edge_free(session->edges[i]);
    }
    hd_free(session->edges);
}
