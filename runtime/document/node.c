/* libyaml's events become a tree. Stricter than YAML: one document, no anchors, aliases or tags, no key twice. */
#include "runtime/document/node.h"

#include "runtime/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum { READ_CHUNK_BYTES = 1 << 16 };

/* The tree under construction: open[depth - 1] is the list or map that takes the next node. */
typedef struct builder {
    hd_document *document;
    yaml_parser_t parser;
    const char *text;
    size_t text_bytes;
    int depth;
    hd_node *open[HD_NODE_DEPTH];
    hd_node *key; /* of the innermost map, waiting for its value */
} builder;

/* Text of a file inside a sentence: what is no plain letter becomes ?, what is long is cut. */
const char *hd_quote(char *out, size_t out_bytes, const char *text)
{
    size_t n = 0;
    for (; text[n] != '\0' && n + 4 < out_bytes; n++) {
        unsigned char c = (unsigned char)text[n];
        out[n] = c < 0x20 || c >= 0x7f ? '?' : (char)c;
    }
    snprintf(out + n, out_bytes - n, "%s", text[n] != '\0' ? "..." : "");
    return out;
}

/* FILE:LINE:COLUMN: sentence, as compilers have it, so that editors jump there. */
heddle_status hd_node_fail(heddle_status status, const hd_node *node, const char *format, ...)
{
    char sentence[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return hd_fail(status, "%s:%d:%d: %s", node->document->name, node->line, node->column, sentence);
}

static heddle_status fail_at(const builder *b, yaml_mark_t mark, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static heddle_status fail_at(const builder *b, yaml_mark_t mark, const char *format, ...)
{
    char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return hd_fail(HEDDLE_ERR_PARSE, "%s:%zu:%zu: %s", b->document->name, mark.line + 1, mark.column + 1, sentence);
}

/* libyaml gives bytes that are not text only an offset. */
static yaml_mark_t mark_of_offset(const builder *b, size_t offset)
{
    yaml_mark_t mark = {offset, 0, 0};
    for (size_t i = 0; i < offset && i < b->text_bytes; i++) {
        mark.column++;
        if (b->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

static heddle_status fail_syntax(const builder *b)
{
    const yaml_parser_t *p = &b->parser;
    const char *problem = p->problem != NULL ? p->problem : "not YAML";
    switch (p->error) {
    case YAML_MEMORY_ERROR:
        return hd_fail(HEDDLE_ERR_NOMEM, "%s: out of memory while reading %zu bytes", b->document->name, b->text_bytes);
    case YAML_READER_ERROR:
        return fail_at(b, mark_of_offset(b, p->problem_offset), "not a text file: %s (value %d)", problem,
                       p->problem_value);
    default:
        if (p->context != NULL) {
            return fail_at(b, p->problem_mark, "%s (%s)", problem, p->context);
        }
        return fail_at(b, p->problem_mark, "%s", problem);
    }
}

/* Depth is bounded by HD_NODE_DEPTH, length is not: so children by recursion, siblings by a loop. */
static void free_nodes(hd_node *node)
{
    while (node != NULL) {
        hd_node *next = node->next;
        free_nodes(node->child);
        HD_FREE_ALL(node->text, node->key, node);
        node = next;
    }
}

static void free_document(hd_document *document)
{
    if (document != NULL) {
        free_nodes(document->root);
        hd_free(document->name);
        hd_free(document);
    }
}

static heddle_status new_node(hd_node **out, const builder *b, hd_node_kind kind, yaml_mark_t mark)
{
    if (mark.line >= INT_MAX || mark.column >= INT_MAX) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s: too many lines", b->document->name);
    }
    void *memory = NULL;
    heddle_status st = hd_alloc(&memory, 1, sizeof(hd_node), "a node of a file");
    if (st == HEDDLE_OK) {
        *out = memory;
        (*out)->document = b->document;
        (*out)->kind = kind;
        (*out)->line = (int)mark.line + 1;
        (*out)->column = (int)mark.column + 1;
    }
    return st;
}

static heddle_status check_key(const builder *b, const hd_node *map, const hd_node *key)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    if (key->kind != HD_NODE_SCALAR) {
        return hd_node_fail(HEDDLE_ERR_PARSE, key, "a key must be a plain word, not a list or a map");
    }
    if (map->count >= HD_NODE_MAP_KEYS) {
        return hd_node_fail(HEDDLE_ERR_PARSE, key, "more than %d keys in one map", HD_NODE_MAP_KEYS);
    }
    for (const hd_node *other = map->child; other != NULL; other = other->next) {
        if (strcmp(other->key, key->text) == 0) {
            return hd_node_fail(HEDDLE_ERR_PARSE, key, "duplicate key '%s', first on line %d",
                                hd_quote(quoted, sizeof quoted, key->text), other->key_line);
        }
    }
    (void)b;
    return HEDDLE_OK;
}

/* Takes `node` over in any case: into the tree, as the waiting key, or freed. */
static heddle_status place_node(builder *b, hd_node *node)
{
    if (b->depth == 0) {
        b->document->root = node;
        return HEDDLE_OK;
    }
    hd_node *parent = b->open[b->depth - 1];
    if (parent->kind == HD_NODE_MAP && b->key == NULL) {
        heddle_status st = check_key(b, parent, node);
        if (st != HEDDLE_OK) {
            free_nodes(node);
            return st;
        }
        b->key = node;
        return HEDDLE_OK;
    }
    if (parent->kind == HD_NODE_MAP) {
        node->key = b->key->text;
        node->key_line = b->key->line;
        node->key_column = b->key->column;
        b->key->text = NULL;
        free_nodes(b->key);
        b->key = NULL;
    }
    if (parent->last_child != NULL) {
        parent->last_child->next = node;
    } else {
        parent->child = node;
    }
    parent->last_child = node;
    parent->count++;
    return HEDDLE_OK;
}

static heddle_status refuse_decoration(const builder *b, const yaml_event_t *event, const yaml_char_t *anchor,
                                       const yaml_char_t *tag)
{
    if (anchor != NULL) {
        return fail_at(b, event->start_mark, "anchors (&name) are not accepted");
    }
    if (tag != NULL) {
        return fail_at(b, event->start_mark, "tags (!name) are not accepted");
    }
    return HEDDLE_OK;
}

/* A list or a map: placed first, so that it is in the tree, and freed with it, whatever comes next. */
static heddle_status open_node(builder *b, const yaml_event_t *event, hd_node_kind kind)
{
    if (b->depth == HD_NODE_DEPTH) {
        return fail_at(b, event->start_mark, "nested more than %d levels deep", HD_NODE_DEPTH);
    }
    if (b->depth > 0 && b->open[b->depth - 1]->kind == HD_NODE_MAP && b->key == NULL) {
        return fail_at(b, event->start_mark, "a key must be a plain word, not a list or a map");
    }
    hd_node *node = NULL;
    heddle_status st = new_node(&node, b, kind, event->start_mark);
    if (st == HEDDLE_OK) {
        st = place_node(b, node);
    }
    if (st == HEDDLE_OK) {
        b->open[b->depth++] = node;
    }
    return st;
}

static heddle_status add_scalar(builder *b, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    if (strlen(value) != event->data.scalar.length) {
        return fail_at(b, event->start_mark, "a text with a zero byte in it");
    }
    hd_node *node = NULL;
    heddle_status st = new_node(&node, b, HD_NODE_SCALAR, event->start_mark);
    if (st != HEDDLE_OK) {
        return st;
    }
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    st = hd_strdup(&node->text, value);
    if (st != HEDDLE_OK) {
        free_nodes(node);
        return st;
    }
    return place_node(b, node);
}

static heddle_status take_event(builder *b, const yaml_event_t *event, int *documents, int *done)
{
    heddle_status st = HEDDLE_OK;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents > 1) {
            return fail_at(b, event->start_mark, "a second document starts here; one is accepted");
        }
        if (event->data.document_start.tag_directives.start != event->data.document_start.tag_directives.end) {
            return fail_at(b, event->start_mark, "tag directives (%%TAG) are not accepted");
        }
        return HEDDLE_OK;
    case YAML_ALIAS_EVENT:
        return fail_at(b, event->start_mark, "aliases (*name) are not accepted; put quotes around a text with '*'");
    case YAML_SCALAR_EVENT:
        st = refuse_decoration(b, event, event->data.scalar.anchor, event->data.scalar.tag);
        return st == HEDDLE_OK ? add_scalar(b, event) : st;
    case YAML_SEQUENCE_START_EVENT:
        st = refuse_decoration(b, event, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        return st == HEDDLE_OK ? open_node(b, event, HD_NODE_LIST) : st;
    case YAML_MAPPING_START_EVENT:
        st = refuse_decoration(b, event, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        return st == HEDDLE_OK ? open_node(b, event, HD_NODE_MAP) : st;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return HEDDLE_OK;
    case YAML_STREAM_END_EVENT:
        *done = 1;
        return HEDDLE_OK;
    default:
        return HEDDLE_OK;
    }
}

static heddle_status build(builder *b)
{
    int documents = 0;
    int done = 0;
    while (!done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&b->parser, &event)) {
            return fail_syntax(b);
        }
        heddle_status st = take_event(b, &event, &documents, &done);
        yaml_event_delete(&event);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    if (b->document->root == NULL) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:1:1: the file is empty", b->document->name);
    }
    return HEDDLE_OK;
}

heddle_status hd_document_read(hd_document_reader read, void *out, const char *text, size_t text_bytes,
                               const char *name, size_t limit_bytes)
{
    heddle_status st = HEDDLE_OK;
    builder b = {.text = text, .text_bytes = text_bytes};
    int has_parser = 0;
    void *memory = NULL;
    if (text_bytes > limit_bytes) {
        return hd_fail(HEDDLE_ERR_PARSE, "%s:1:1: the file has %zu bytes; at most %zu are accepted", name, text_bytes,
                       limit_bytes);
    }
    HD_TRY(hd_alloc(&memory, 1, sizeof(hd_document), "a document"));
    b.document = memory;
    HD_TRY(hd_strdup(&b.document->name, name));
    if (!yaml_parser_initialize(&b.parser)) {
        st = hd_fail(HEDDLE_ERR_NOMEM, "%s: out of memory while reading %zu bytes", name, text_bytes);
        goto out;
    }
    has_parser = 1;
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text, text_bytes);
    HD_TRY(build(&b));
    st = read(out, b.document->root);
out:
    if (has_parser) {
        yaml_parser_delete(&b.parser);
    }
    free_nodes(b.key);
    free_document(b.document);
    return st;
}

/* Reads to the end; a file that grows past the limit meanwhile is refused like a long one. */
static heddle_status read_all(char **out, size_t *out_bytes, int fd, const char *path, size_t limit_bytes)
{
    heddle_status st = HEDDLE_OK;
    size_t capacity = READ_CHUNK_BYTES;
    size_t bytes = 0;
    void *buffer = NULL;
    HD_TRY(hd_alloc(&buffer, capacity, 1, "a file"));
    for (;;) {
        ssize_t n = read(fd, (char *)buffer + bytes, capacity - bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            st = hd_fail(HEDDLE_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
            goto out;
        }
        if (n == 0) {
            break;
        }
        bytes += (size_t)n;
        if (bytes > limit_bytes) {
            st = hd_fail(HEDDLE_ERR_PARSE, "%s:1:1: the file is longer than the %zu bytes that are accepted", path,
                         limit_bytes);
            goto out;
        }
        if (bytes == capacity) {
            void *larger = NULL;
            HD_TRY(hd_alloc(&larger, 2 * capacity, 1, "a file"));
            memcpy(larger, buffer, bytes);
            hd_free(buffer);
            buffer = larger;
            capacity *= 2;
        }
    }
    *out = buffer;
    *out_bytes = bytes;
    buffer = NULL;
out:
    hd_free(buffer);
    return st;
}

heddle_status hd_document_load(hd_document_reader read, void *out, const char *path, size_t limit_bytes)
{
    char *text = NULL;
    size_t text_bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return hd_fail(HEDDLE_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    heddle_status st = read_all(&text, &text_bytes, fd, path, limit_bytes);
    close(fd);
    st = st == HEDDLE_OK ? hd_document_read(read, out, text, text_bytes, path, limit_bytes) : st;
    hd_free(text);
    return st;
}

void hd_put_quoted(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        char code[8] = {(char)*p};
        if (*p == '"' || *p == '\\') {
            snprintf(code, sizeof code, "\\%c", *p);
        } else if (*p < 0x20 || *p == 0x7f) {
            snprintf(code, sizeof code, "\\u%04x", *p);
        }
        fputs(code, f);
    }
    fputc('"', f);
}
