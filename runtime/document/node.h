/* A YAML or JSON text as a tree of nodes with positions: what models and schedules are read through.
 *
 * libyaml does the scanning; scalars stay text and are typed by the reader that wants them. Refused: anchors, aliases,
 * tags, several documents, duplicate keys, deep nesting, maps of more than HD_NODE_MAP_KEYS keys. Errors are sentences
 * "NAME:LINE:COLUMN: ..." (HEDDLE_ERR_PARSE).
 */
#ifndef HD_NODE_H
#define HD_NODE_H

#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { HD_NODE_DEPTH = 16, HD_NODE_MAP_KEYS = 256, HD_NODE_QUOTE_BYTES = 56, HD_NODE_LABEL_BYTES = 64 };

typedef enum hd_node_kind { HD_NODE_SCALAR, HD_NODE_LIST, HD_NODE_MAP } hd_node_kind;

typedef struct hd_document hd_document;

typedef struct hd_node {
    const hd_document *document;
    hd_node_kind kind;
    int line, column; /* from 1; of the value */
    char *text;       /* scalar, else NULL */
    int quoted;       /* scalar written in quotes: never a number or a boolean */
    char *key;        /* in a map */
    int key_line, key_column;
    int count; /* list, map: children */
    struct hd_node *child, *last_child, *next;
} hd_node;

struct hd_document {
    char *name; /* in error sentences */
    hd_node *root;
};

/* Makes `out` of what a document says; its nodes stay until this returns. */
typedef heddle_status (*hd_document_reader)(void *out, const hd_node *root);

/* `limit_bytes`: longer texts are refused with both numbers. */
heddle_status hd_document_read(hd_document_reader read, void *out, const char *text, size_t text_bytes,
                               const char *name, size_t limit_bytes);
/* Of a whole file; HEDDLE_ERR_IO says why not, HEDDLE_ERR_PARSE when it is longer than the limit. */
heddle_status hd_document_load(hd_document_reader read, void *out, const char *path, size_t limit_bytes);

/* Set the sentence "NAME:LINE:COLUMN: ..." and return `status`. */
heddle_status hd_node_fail(heddle_status status, const hd_node *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Text made fit for a sentence: shortened, control bytes replaced. Returns `out`. */
const char *hd_quote(char *out, size_t out_bytes, const char *text);

/* A known key of a map. */
typedef struct hd_key {
    const char *name;
    int required;
} hd_key;

/* Checks that `node` is a map with known keys only and puts the value of keys[i] into values[i] (NULL if absent).
 * `what` names the map in sentences ("the model", "stage 3"). */
heddle_status hd_map_read(const hd_node **values, const hd_node *node, const hd_key *keys, int nkeys, const char *what);
/* What another kind of file is known by, and what is said of it where this one is wanted. */
typedef struct hd_other {
    const char *key, *says;
} hd_other;
heddle_status hd_map_refuse(const hd_node *node, const hd_other *others, int nothers);
/* The name nearest to `text` within two edits, or NULL. names[n] through a stride, so that any table can be searched.
 */
const char *hd_nearest(const char *text, const char *const *names, int nnames);

/* Typed scalars; `what` is the key in sentences. */
heddle_status hd_node_int(int64_t *out, const hd_node *node, int64_t low, int64_t high, const char *what);
heddle_status hd_node_bool(int *out, const hd_node *node, const char *what);
heddle_status hd_node_text(const char **out, const hd_node *node, const char *what);
/* A name for reports: letters, digits, '.', '_', '-'; HD_NODE_LABEL_BYTES with the 0. */
heddle_status hd_node_label(char *out, const hd_node *node, const char *what);
heddle_status hd_node_choice(int *out, const hd_node *node, const char *const *names, int nnames, const char *what);
heddle_status hd_node_list(const hd_node *node, int low, int high, const char *what);

/* In double quotes, as YAML and JSON read it. */
void hd_put_quoted(FILE *f, const char *text);

#endif
