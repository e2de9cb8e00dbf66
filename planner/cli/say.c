/* What the command line says of texts it did not write: names in files, arguments, sentences that quote them. A
 * terminal obeys control bytes, so none of them reaches it. */
#include "launch.h"
#include "runtime/files/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

enum { SENTENCE_BYTES = 16384 };

/* Control characters of ASCII and of ISO 8859 (a terminal takes U+009B for ESC [), and those that turn the direction of
 * writing round. */
static int is_control(unsigned code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

const char *cli_shown(char *out, size_t out_bytes, const char *text)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        int length = utf8_length(&code, p);
        if (length > 0 && !is_control(code)) {
            if (n + (size_t)length + 1 > out_bytes) {
                break;
            }
            memcpy(out + n, p, (size_t)length);
            n += (size_t)length;
            p += length;
            continue;
        }
        for (int i = 0; i < (length > 0 ? length : 1); i++, p++) {
            if (n + 5 > out_bytes) {
                out[n] = '\0';
                return out;
            }
            n += (size_t)snprintf(out + n, out_bytes - n, "\\x%02x", *p);
        }
    }
    out[n] = '\0';
    return out;
}

void cli_put_json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        unsigned code = 0;
        int length = utf8_length(&code, p);
        if (*p == '"' || *p == '\\') {
            fprintf(to, "\\%c", *p);
        } else if (length == 0 || is_control(code)) {
            fprintf(to, "\\u%04x", length == 0 ? *p : code); /* a byte that is no text: as ISO 8859-1 has it */
        } else {
            fwrite(p, 1, (size_t)length, to);
        }
        p += length > 0 ? length : 1;
    }
    fputc('"', to);
}

static void say(const char *format, va_list arguments)
{
    char sentence[SENTENCE_BYTES], shown[4 * SENTENCE_BYTES];
    vsnprintf(sentence, sizeof sentence, format, arguments);
    char own[32];
    const char *rest = cli_own_say(own, sizeof own, sentence);
    if (rest != NULL) {
        fprintf(stderr, "heddle: %s%s\n", own, cli_shown(shown, sizeof shown, rest));
    }
}

void cli_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

int cli_usage_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return CLI_BAD_INPUT;
}

int cli_report(heddle_status status)
{
    if (status != HEDDLE_OK) {
        cli_say("%s", heddle_last_error());
    }
    return cli_exit_code(status);
}

int cli_report_written(heddle_status status)
{
    const int code = cli_report(status);
    return status == HEDDLE_ERR_IO ? CLI_FAILED : code;
}

int cli_printed(int code)
{
    static int is_said; /* what was printed and lost stays lost, and is said once */
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return code;
    }
    if (!is_said) {
        cli_say("standard output could not be written%s%s", errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
    }
    is_said = 1;
    return code == CLI_OK ? CLI_FAILED : code;
}
