#include "runtime/base/base.h"

#include <heddle/version.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SENTENCE_BYTES = 8192 };

static _Thread_local char sentence[SENTENCE_BYTES];

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

/* Formats into a scratch array first: an argument may be the present sentence itself. */
static void set_sentence(const char *format, va_list arguments)
{
    char fresh[SENTENCE_BYTES];
    vsnprintf(fresh, sizeof fresh, format, arguments);
    memcpy(sentence, fresh, sizeof sentence);
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
    char prefix[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    char rest[SENTENCE_BYTES - sizeof prefix - 2];
    snprintf(rest, sizeof rest, "%s", sentence);
    snprintf(sentence, sizeof sentence, "%s: %s", prefix, rest);
    return status;
}

hd_sentence hd_sentence_keep(void)
{
    hd_sentence kept;
    snprintf(kept.text, sizeof kept.text, "%s", sentence);
    return kept;
}

heddle_status hd_sentence_say(const hd_sentence *kept, heddle_status status)
{
    return hd_fail(status, "%s", kept->text);
}
