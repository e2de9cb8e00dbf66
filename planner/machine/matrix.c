/* The text of `nvidia-smi topo -m` -> levels of GPUs. */
#include "planner/machine/preset.h"
#include "runtime/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GPUS = 64, LINE_BYTES = 4096, WORDS = 128, MAX_LINES = 4096, NVLINK_MAX = 64 };

typedef struct matrix {
    const char *path;
    int line;
    int ngpus, nrows;
    signed char near[MAX_GPUS][MAX_GPUS]; /* hd_near; on the diagonal nothing */
    int nvlinks;                          /* the fewest of any pair that has some */
} matrix;

static heddle_status fail_at(const matrix *m, const char *what, const char *word)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: %s '%s'", m->path, m->line, what, hd_quote(quoted, sizeof quoted, word));
}

/* Colours and underlines go, words stay. */
static int split(char **word, char *line)
{
    int n = 0;
    for (char *p = line; *p != '\0'; p++) {
        if (*p == '\x1b') {
            while (*p != '\0' && *p != 'm') {
                *p++ = ' ';
            }
            if (*p == '\0') {
                break;
            }
            *p = ' ';
        }
    }
    for (char *rest = NULL, *w = strtok_r(line, " \t\r\n", &rest); w != NULL && n < WORDS;
         w = strtok_r(NULL, " \t\r\n", &rest)) {
        word[n++] = w;
    }
    return n;
}

static int is_gpu(const char *word, int number)
{
    char wanted[16];
    snprintf(wanted, sizeof wanted, "GPU%d", number);
    return strcmp(word, wanted) == 0;
}

static heddle_status read_header(matrix *m, char **word, int n)
{
    while (m->ngpus < n && is_gpu(word[m->ngpus], m->ngpus)) {
        if (++m->ngpus > MAX_GPUS) {
            return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: more than %d GPUs", m->path, m->line, MAX_GPUS);
        }
    }
    return HEDDLE_OK;
}

static heddle_status read_near(signed char *out, matrix *m, const char *word)
{
    static const struct {
        const char *word;
        hd_near near;
    } known[] = {{"PIX", HD_NEAR_SWITCH},
                 {"PXB", HD_NEAR_SWITCH},
                 {"PHB", HD_NEAR_BRIDGE},
                 {"NODE", HD_NEAR_BRIDGE},
                 {"SYS", HD_NEAR_SOCKETS}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(word, known[i].word) == 0) {
            *out = (signed char)known[i].near;
            return HEDDLE_OK;
        }
    }
    char *end = NULL;
    const long links = strncmp(word, "NV", 2) == 0 ? strtol(word + 2, &end, 10) : 0;
    if (links < 1 || links > NVLINK_MAX || *end != '\0') {
        return fail_at(m, "GPUs are linked by NV1 .. NV64, PIX, PXB, PHB, NODE or SYS, not by", word);
    }
    m->nvlinks = m->nvlinks == 0 || links < m->nvlinks ? (int)links : m->nvlinks;
    *out = HD_NEAR_NVLINK;
    return HEDDLE_OK;
}

static heddle_status read_row(matrix *m, char **word, int n)
{
    heddle_status st = HEDDLE_OK;
    const int i = m->nrows;
    if (i >= m->ngpus || !is_gpu(word[0], i)) {
        return fail_at(m, "a row out of order:", word[0]);
    }
    if (n < 1 + m->ngpus) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: %s has %d of %d columns", m->path, m->line, word[0], n - 1, m->ngpus);
    }
    for (int j = 0; j < m->ngpus; j++) {
        if ((strcmp(word[1 + j], "X") == 0) != (i == j)) {
            return fail_at(m,
                           i == j ? "a GPU and itself are X, not" : "X stands between a GPU and itself alone, not at",
                           i == j ? word[1 + j] : word[0]);
        }
        HD_TRY(i == j ? HEDDLE_OK : read_near(&m->near[i][j], m, word[1 + j]));
        if (j < i && m->near[i][j] != m->near[j][i]) {
            st = hd_fail(HEDDLE_ERR_PARSE, "%s:%d: GPU%d is linked to GPU%d by '%s', the other way round by another",
                         m->path, m->line, i, j, word[1 + j]);
            goto out;
        }
    }
    m->nrows++;
out:
    return st;
}

static heddle_status read_lines(matrix *m, FILE *f)
{
    heddle_status st = HEDDLE_OK;
    char line[LINE_BYTES];
    char *word[WORDS];
    while (fgets(line, sizeof line, f) != NULL) {
        if (++m->line > MAX_LINES || strlen(line) + 1 == sizeof line) {
            return hd_fail(HEDDLE_ERR_PARSE, "%s:%d: longer than the text of nvidia-smi topo -m is", m->path, m->line);
        }
        const int n = split(word, line);
        if (n > 0 && m->ngpus == 0) {
            HD_TRY(read_header(m, word, n));
        } else if (n > 0 && m->nrows < m->ngpus && strncmp(word[0], "GPU", 3) == 0) {
            HD_TRY(read_row(m, word, n));
        }
    }
    if (ferror(f) != 0) {
        st = hd_fail(HEDDLE_ERR_IO, "%s cannot be read: %s", m->path, strerror(errno));
    } else if (m->ngpus == 0 || m->nrows < m->ngpus) {
        st = hd_fail(HEDDLE_ERR_PARSE, "%s:%d: no whole table of nvidia-smi topo -m: %d rows of %d GPUs", m->path,
                     m->line, m->nrows, m->ngpus);
    }
out:
    return st;
}

/* GPUs up to `near` of one another, by number: groups of *size, all alike but perhaps the last. */
static heddle_status group(int *size, const matrix *m, hd_near near)
{
    *size = 1;
    while (*size < m->ngpus && m->near[0][*size] <= (int)near) {
        ++*size;
    }
    for (int i = 0; i < m->ngpus; i++) {
        for (int j = 0; j < i; j++) {
            if ((m->near[i][j] <= (int)near) != (i / *size == j / *size)) {
                return hd_fail(
                    HEDDLE_ERR_LAYOUT,
                    "%s: ranks are dealt out in order, but GPU%d and GPU%d are %s than groups of %d by number "
                    "have them; CUDA_VISIBLE_DEVICES numbers them anew",
                    m->path, j, i, m->near[i][j] <= (int)near ? "nearer" : "farther", *size);
            }
        }
    }
    return HEDDLE_OK;
}

/* As many NVLinks as GPUs of the presets have, or none. */
static int is_usual(const matrix *m)
{
    return m->nvlinks == 0 || m->nvlinks == 8 || m->nvlinks == 12 || m->nvlinks == 18;
}

/* Per direction and link, as NCCL counts them. */
static double ring_of(const matrix *m, const hd_gpu *g)
{
    return g->nvlink_ring > 0 && is_usual(m) ? g->nvlink_ring : 20.6e9 * m->nvlinks;
}

static heddle_status add_levels(heddle_machine *machine, const matrix *m, const hd_gpu *g)
{
    heddle_status st = HEDDLE_OK;
    int within = 1;
    for (hd_near near = 0; near < HD_NEARS && (within < m->ngpus || machine->nlevels == 0); near++) {
        int size = 1;
        HD_TRY(group(&size, m, near));
        if (size == within && !(m->ngpus == 1 && near == HD_NEAR_BRIDGE)) {
            continue;
        }
        if (size % within != 0 && size < m->ngpus) {
            st = hd_fail(HEDDLE_ERR_LAYOUT, "%s: groups of %d GPUs hold no whole number of groups of %d", m->path, size,
                         within);
            goto out;
        }
        hd_preset_add_near(machine, near, (size + within - 1) / within, size, ring_of(m, g),
                           g->nvlink_ring > 0 ? g->start_s : 50e-6);
        within = size;
    }
out:
    return st;
}

/* The GPU that has so many NVLinks; of those without, one that is usual. */
static const char *guess(const matrix *m)
{
    return m->nvlinks == 18   ? "h100"
           : m->nvlinks == 12 ? "a100"
           : m->nvlinks == 8  ? "a800"
           : m->nvlinks > 0   ? "a100"
                              : "l40";
}

static int all_by_nvlink(const matrix *m)
{
    for (int i = 0; i < m->ngpus; i++) {
        for (int j = 0; j < i; j++) {
            if (m->near[i][j] != HD_NEAR_NVLINK) {
                return 0;
            }
        }
    }
    return m->ngpus > 1;
}

static int alike(const heddle_machine *a, const heddle_machine *b)
{
    int same = a->nlevels == b->nlevels && a->ranks == b->ranks;
    for (int l = 0; same && l < a->nlevels; l++) {
        same = a->level[l].size == b->level[l].size &&
               strcmp(a->link[a->level[l].link].name, b->link[b->level[l].link].name) == 0;
    }
    return same;
}

static heddle_status make(heddle_machine *machine, const matrix *m, const char *gpu)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine preset = {.nlevels = 0};
    hd_preset p;
    const char *of = gpu != NULL ? gpu : guess(m);
    char name[HD_MACHINE_NAME_BYTES], text[512];
    snprintf(name, sizeof name, "%dx%.16s-%s", m->ngpus, of, all_by_nvlink(m) ? "nvlink" : "pcie");
    hd_preset_lower(name, sizeof name, name);
    HD_TRY(hd_preset_parse(&p, name));
    HD_TRY(hd_preset_fill(&preset, &p));
    *machine = preset;
    machine->source = NULL;
    machine->nlevels = machine->nlinks = 0;
    memset(machine->level, 0, sizeof machine->level);
    memset(machine->link, 0, sizeof machine->link);
    HD_TRY(add_levels(machine, m, p.gpu));
    if (is_usual(m) && alike(machine, &preset)) {
        *machine = preset;
        preset.source = NULL;
    } else {
        hd_add_text(name, sizeof name, "-topo");
        snprintf(text, sizeof text, "Levels of nvidia-smi topo -m; links by their kind, rough. %s", p.gpu->source);
        HD_TRY(hd_strdup(&machine->source, text));
    }
    snprintf(machine->name, sizeof machine->name, "%s", name);
out:
    hd_free(preset.source);
    return st;
}

static heddle_status read_matrix(matrix *m, const char *path)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return hd_fail(HEDDLE_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    }
    m->path = path;
    const heddle_status st = read_lines(m, f);
    fclose(f);
    return st;
}

heddle_status heddle_machine_discover(heddle_machine **out, const char *xml, const char *path, const char *gpu)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine *machine = NULL;
    matrix *m = NULL;
    HD_TRY(HD_NEED(out));
    HD_TRY(hd_alloc((void **)&machine, 1, sizeof *machine, "a machine"));
    if (path != NULL) {
        HD_TRY(hd_alloc((void **)&m, 1, sizeof *m, "a table of GPUs"));
        HD_TRY(read_matrix(m, path));
        HD_TRY(make(machine, m, gpu));
    } else if (gpu != NULL) {
        st = hd_fail(HEDDLE_ERR_ARG, "GPU '%.32s' without a table of links (nvidia-smi topo -m)", gpu);
        goto out;
    } else {
        snprintf(machine->name, sizeof machine->name, "%s", xml != NULL ? "host" : "cpu");
        HD_TRY(hd_preset_fill_cpu(machine, xml));
    }
    *out = machine;
    machine = NULL;
out:
    hd_free(m);
    heddle_machine_destroy(machine);
    return st;
}
