/* Numbers with a point in a model file. */
#include "planner/model/model_read.h"

#include <string.h>

/* "12.345": how many digits before and behind the point; returns how far the number goes. */
static size_t scan_decimal(const char *text, size_t *whole, size_t *places)
{
    *whole = strspn(text, "0123456789");
    *places = text[*whole] == '.' ? strspn(text + *whole + 1, "0123456789") : 0;
    return *whole + (text[*whole] == '.' ? 1 + *places : 0);
}

heddle_status hd_read_ratio(int64_t *out, const hd_node *node)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "ratio");
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t whole, places, length = scan_decimal(text, &whole, &places);
    int64_t value = 0;
    if (!node->quoted && whole > 0 && whole <= 4 && (whole == 1 || text[0] != '0') && places <= 6 &&
        (text[whole] != '.' || places > 0) && text[length] == '\0') {
        for (size_t i = 0; i < whole + 6; i++) {
            size_t at = i < whole ? i : i + 1;
            value = value * 10 + (i < whole + places ? text[at] - '0' : 0);
        }
    }
    if (value == 0) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node,
                            "'ratio' must be a number from 0.000001 to 9999 with up to six places, found '%s'",
                            hd_quote(quoted, sizeof quoted, text));
    }
    *out = value;
    return HEDDLE_OK;
}

heddle_status hd_read_decay(double *out, const hd_node *node)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "decay");
    if (st != HEDDLE_OK) {
        return st;
    }
    if (strcmp(text, "slopes") == 0) {
        *out = 0;
        return HEDDLE_OK;
    }
    size_t whole, places, length = scan_decimal(text, &whole, &places);
    double value = 0;
    double unit = 1;
    for (size_t i = 0; i < length && length <= 20; i++) {
        unit *= i > whole ? 10 : 1;
        value = text[i] == '.' ? value : value * 10 + (text[i] - '0');
    }
    value /= unit;
    if (node->quoted || whole != 1 || length > 20 || (text[whole] == '.' && places == 0) || text[length] != '\0' ||
        !(value > 0 && value <= 1)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node,
                            "'decay' must be a number above 0 and at most 1, like 0.99, or slopes, found '%s'",
                            hd_quote(quoted, sizeof quoted, text));
    }
    *out = value;
    return HEDDLE_OK;
}
