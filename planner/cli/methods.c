#include "methods.h"

#include <stdio.h>
#include <string.h>

int cli_add_methods(char *methods, const char *value)
{
    const size_t used = strlen(methods);
    if (value[0] == '\0') {
        return cli_usage_error("--method wants STAGE=METHOD, for example s.attn=ring or '*=local'");
    }
    if (used + 1 + strlen(value) >= CLI_METHODS_BYTES) {
        return cli_usage_error("--method: more than %d characters of methods", CLI_METHODS_BYTES - 1);
    }
    snprintf(methods + used, CLI_METHODS_BYTES - used, "%s%s", used > 0 ? "," : "", value);
    return CLI_OK;
}
