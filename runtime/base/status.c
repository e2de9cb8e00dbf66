#include "runtime/base/base.h"
#include "runtime/base/utf8.h"

#include <heddle/version.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[HD_SENTENCE_BYTES];

const char *heddle_status_name(heddle_status status)
{
    switch (status) {
#define NAME(name, text)                                                                                               \
    case HEDDLE_##name:                                                                                                \
        return "HEDDLE_" #name;
        HEDDLE_STATUS_LIST(NAME)
#undef NAME
    }
    return "HEDDLE_UNKNOWN";
}

const char *heddle_last_error(void)
{
    return sentence;
}

const char *heddle_version(void)
{
    return HEDDLE_VERSION;
}

/* Of a text that was longer: in no character's middle. */
static void mark_cut(char *text)
{
    static const char mark[] = "...";
    const size_t length = strlen(text);
    size_t at = length > sizeof mark - 1 ? length - (sizeof mark - 1) : 0;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) {
        at--;
    }
    memcpy(text + at, mark, length < sizeof mark - 1 ? length : sizeof mark);
}

void hd_copy_text(char *out, size_t bytes, const char *text)
{
    if (snprintf(out, bytes, "%s", text) >= (int)bytes) {
        mark_cut(out);
    }
}

void hd_add_text(char *out, size_t bytes, const char *text)
{
    const size_t added = strlen(text), room = added < bytes ? bytes - 1 - added : 0;
    if (strlen(out) > room) {
        out[room] = '\0';
        mark_cut(out);
    }
    const size_t at = strlen(out);
    hd_copy_text(out + at, bytes - at, text);
}

/* Formats into a scratch array first: an argument may be the present sentence itself. Whatever names and reasons it
 * quotes, it is one line of text. */
static void set_sentence(const char *format, va_list arguments)
{
    char fresh[HD_SENTENCE_BYTES];
    if (vsnprintf(fresh, sizeof fresh, format, arguments) >= (int)sizeof fresh) {
        mark_cut(fresh);
    }
    if (fresh[utf8_show(sentence, sizeof sentence, fresh)] != '\0') {
        mark_cut(sentence);
    }
}

heddle_status hd_fail(heddle_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_sentence(format, arguments);
    va_end(arguments);
    return status;
}

heddle_status heddle_set_error(heddle_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_sentence(format != NULL ? format : "no reason given", arguments);
    va_end(arguments);
    return status;
}

heddle_status hd_fail_prefix(heddle_status status, const char *format, ...)
{
    char prefix[HD_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    return hd_fail(status, "%s: %s", prefix, sentence);
}

hd_sentence hd_sentence_keep(void)
{
    hd_sentence kept;
    memcpy(kept.text, sentence, sizeof kept.text);
    return kept;
}

heddle_status hd_sentence_say(const hd_sentence *kept, heddle_status status)
{
    return hd_fail(status, "%s", kept->text);
}

void hd_broken_keep(hd_broken *broken, heddle_status status)
{
    if (broken->status == HEDDLE_OK) {
        broken->status = status;
        hd_copy_text(broken->why, sizeof broken->why, sentence);
    }
}

heddle_status hd_broken_say(const hd_broken *broken)
{
    return broken->status == HEDDLE_OK ? HEDDLE_OK : hd_fail(broken->status, "%s", broken->why);
}
