/* What the command line says of texts it did not write: names in files, arguments, sentences that quote them. A
 * terminal obeys control bytes, so none of them reaches it. */
#include "launch.h"
#include "planner/report/text.h"
#include "runtime/base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SENTENCE_BYTES = 16384 };

/* A complaint is one line, which programs look for; a person at a terminal gets lines that end between words. */
static void print(const char *own, const char *sentence)
{
    char *lines = NULL;
    size_t bytes = 0;
    FILE *text = isatty(STDERR_FILENO) ? open_memstream(&lines, &bytes) : NULL;
    if (text == NULL) {
        fprintf(stderr, "heddle: %s%s\n", own, sentence);
        return;
    }
    report_wrap(text, sentence, fprintf(text, "heddle: %s", own), 2, REPORT_COLUMNS);
    if (fclose(text) == 0) { /* at once: ranks share the terminal */
        fprintf(stderr, "%s\n", lines);
    }
    free(lines);
}

static void say(const char *format, va_list arguments)
{
    const size_t bytes = 4 * SENTENCE_BYTES; /* not on the stack, which may be small */
    char sentence[SENTENCE_BYTES], *shown = malloc(bytes);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    char own[32];
    const char *rest = cli_own_say(own, sizeof own, sentence);
    if (rest != NULL) {
        if (shown != NULL) {
            (void)utf8_show(shown, bytes, rest);
        }
        print(own, shown != NULL ? shown : "out of memory");
    }
    free(shown);
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
