/* Machine file -> heddle_machine; the format is in docs/formats.md. One table of keys per map. */
#include "planner/machine/read.h"
#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

enum { SOURCE_BYTES = 4096 };

enum {
    MACHINE_NAME,
    MACHINE_SOURCE,
    MACHINE_CALIBRATED,
    MACHINE_DEVICE,
    MACHINE_RANKS,
    MACHINE_MEMORY,
    MACHINE_OVERLAP,
    MACHINE_CROWDING,
    MACHINE_LEVELS,
    MACHINE_WORK,
    MACHINE_LINKS,
    MACHINE_KEYS
};
static const hd_key machine_keys[MACHINE_KEYS] = {
    [MACHINE_NAME] = {"machine", 1},
    [MACHINE_SOURCE] = {"source", 0},
    [MACHINE_CALIBRATED] = {"calibrated", 0},
    [MACHINE_DEVICE] = {"on_device", 0},
    [MACHINE_RANKS] = {"ranks", 0},
    [MACHINE_MEMORY] = {"memory_bytes", 0},
    [MACHINE_OVERLAP] = {"overlap_slowdown", 0},
    [MACHINE_CROWDING] = {"crowding_slowdown", 0},
    [MACHINE_LEVELS] = {"levels", 1},
    [MACHINE_WORK] = {"work", 1},
    [MACHINE_LINKS] = {"links", 1},
};

enum { LEVEL_NAME, LEVEL_SIZE, LEVEL_LINK, LEVEL_KEYS };
static const hd_key level_keys[LEVEL_KEYS] = {
    [LEVEL_NAME] = {"name", 1}, [LEVEL_SIZE] = {"size", 1}, [LEVEL_LINK] = {"link", 1}};

int hd_machine_is_name(const char *text)
{
    return strspn(text, "._+-") == 0 && text[0] != '\0' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-") == strlen(text);
}

static heddle_status read_name(char *out, size_t bytes, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const char *text = NULL;
    char quoted[HD_NODE_QUOTE_BYTES];
    HD_TRY(hd_node_text(&text, node, what));
    if (strlen(text) >= bytes || !hd_machine_is_name(text)) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be 1 to %zu letters, digits or . _ + -, found '%s'", what,
                          bytes - 1, hd_quote(quoted, sizeof quoted, text));
        goto out;
    }
    memcpy(out, text, strlen(text) + 1);
out:
    return st;
}

static heddle_status read_level(heddle_machine *m, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    hd_level *level = &m->level[m->nlevels];
    const hd_node *value[LEVEL_KEYS];
    const char *names[HEDDLE_MACHINE_LINKS];
    int64_t size = 0;
    HD_TRY(hd_map_read(value, node, level_keys, LEVEL_KEYS, "a level"));
    HD_TRY(read_name(level->name, sizeof level->name, value[LEVEL_NAME], "name"));
    HD_TRY(hd_node_int(&size, value[LEVEL_SIZE], 1, HD_MACHINE_MAX_RANKS, "size"));
    for (int i = 0; i < m->nlinks; i++) {
        names[i] = m->link[i].name;
    }
    HD_TRY(hd_node_choice(&level->link, value[LEVEL_LINK], names, m->nlinks, "link"));
    for (int l = 0; l < m->nlevels; l++) {
        if (strcmp(m->level[l].name, level->name) == 0) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "levels %d and %d are both called '%s'", l + 1, m->nlevels + 1,
                              level->name);
            goto out;
        }
    }
    level->size = (int)size;
    m->nlevels++;
out:
    return st;
}

/* Every class is of some level and has figures; nobody has more ranks than HD_MACHINE_MAX_RANKS. */
static heddle_status read_levels(heddle_machine *m, const hd_node *node, const hd_node *links)
{
    heddle_status st = HEDDLE_OK;
    int64_t ranks = 1;
    HD_TRY(hd_node_list(node, 1, HEDDLE_MACHINE_LINKS, "levels"));
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        HD_TRY(read_level(m, child));
        ranks *= m->level[m->nlevels - 1].size;
        if (ranks > HD_MACHINE_MAX_RANKS) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, child,
                              "up to level '%s' there are %lld ranks, at most %d are supported",
                              m->level[m->nlevels - 1].name, (long long)ranks, HD_MACHINE_MAX_RANKS);
            goto out;
        }
    }
    m->ranks = (int)ranks;
    const hd_node *link = links->child;
    for (int i = 0; i < m->nlinks; i++, link = link->next) {
        int is_used = 0;
        for (int l = 0; l < m->nlevels; l++) {
            is_used |= m->level[l].link == i;
        }
        if (!is_used) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, link, "no level has the link class '%s'", m->link[i].name);
            goto out;
        }
        if (link->count == 0 && m->ranks > 1) { /* one rank sends nothing */
            st = hd_node_fail(HEDDLE_ERR_PARSE, link, "link class '%s' has no figures (all_to_all: [{rates: 3e11}])",
                              m->link[i].name);
            goto out;
        }
    }
out:
    return st;
}

/* Fewer than the levels hold: the last ones of the outermost may be missing. */
static heddle_status read_ranks(heddle_machine *m, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    int64_t ranks = 0;
    const int held = m->ranks, inner = held / m->level[m->nlevels - 1].size;
    HD_TRY(hd_node_int(&ranks, node, 1, HD_MACHINE_MAX_RANKS, "ranks"));
    if (ranks > held || ranks <= held - inner) {
        st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "%lld ranks, but the levels hold %d to %d", (long long)ranks,
                          held - inner + 1, held);
        goto out;
    }
    m->ranks = (int)ranks;
out:
    return st;
}

static heddle_status read_source(heddle_machine *m, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    const char *text = "";
    HD_TRY(node != NULL ? hd_node_text(&text, node, "source") : HEDDLE_OK);
    if (strlen(text) >= SOURCE_BYTES) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'source' has %zu bytes, at most %d are taken", strlen(text),
                          SOURCE_BYTES - 1);
        goto out;
    }
    st = hd_strdup(&m->source, text);
out:
    return st;
}

static const hd_other others[] = {
    {"schema", "this is a schedule or an answer, no machine"},
    {"stages", "this is a model, no machine"},
};

static heddle_status read_all(heddle_machine *m, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[MACHINE_KEYS];
    m->overlap_slowdown = m->crowding_slowdown = 1;
    HD_TRY(hd_map_refuse(root, others, sizeof others / sizeof others[0]));
    HD_TRY(hd_map_read(value, root, machine_keys, MACHINE_KEYS, "the machine"));
    HD_TRY(read_name(m->name, HD_MACHINE_NAME_BYTES, value[MACHINE_NAME], "machine"));
    HD_TRY(read_source(m, value[MACHINE_SOURCE]));
    if (value[MACHINE_CALIBRATED] != NULL) {
        HD_TRY(hd_node_bool(&m->is_calibrated, value[MACHINE_CALIBRATED], "calibrated"));
    }
    if (value[MACHINE_DEVICE] != NULL) {
        HD_TRY(hd_node_bool(&m->on_device, value[MACHINE_DEVICE], "on_device"));
    }
    if (value[MACHINE_MEMORY] != NULL) {
        HD_TRY(hd_node_int(&m->memory_bytes, value[MACHINE_MEMORY], 0, HD_MACHINE_MEMORY_MAX, "memory_bytes"));
    }
    if (value[MACHINE_OVERLAP] != NULL) {
        HD_TRY(hd_machine_number(&m->overlap_slowdown, value[MACHINE_OVERLAP], 1, 100, "overlap_slowdown"));
    }
    if (value[MACHINE_CROWDING] != NULL) {
        HD_TRY(hd_machine_number(&m->crowding_slowdown, value[MACHINE_CROWDING], 1, 100, "crowding_slowdown"));
    }
    HD_TRY(hd_machine_read_work(m, value[MACHINE_WORK]));
    HD_TRY(hd_machine_read_links(m, value[MACHINE_LINKS]));
    HD_TRY(read_levels(m, value[MACHINE_LEVELS], value[MACHINE_LINKS]));
    HD_TRY(value[MACHINE_RANKS] ? read_ranks(m, value[MACHINE_RANKS]) : HEDDLE_OK);
out:
    return st;
}

heddle_status hd_machine_read(void *out, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine *machine = NULL;
    HD_TRY(hd_alloc((void **)&machine, 1, sizeof *machine, "a machine"));
    HD_TRY(read_all(machine, root));
    *(heddle_machine **)out = machine;
    machine = NULL;
out:
    heddle_machine_destroy(machine);
    return st;
}
