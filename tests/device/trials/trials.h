/* Forms of kernels that are to be timed on a card before one of them becomes the library's. Each is launched by its
 * number, from 0 on. */
#ifndef HD_TRIALS_H
#define HD_TRIALS_H

#include "kernels/device_attention.h"
#include "kernels/device_rows.h"

enum { TRIAL_NONE = -1 /* no form has that number */, TRIAL_OTHER = -2 /* it is for other shapes */ };

#ifdef __cplusplus
extern "C" {
#endif
extern int trial_multiprocessors; /* of the device */

int trial_forward(int i, const hd_device_attention *of, const char **name);
int trial_backward(int i, const hd_device_attention_back *back, const char **name);
int trial_heads(int i, const hd_device_heads *of, void *x, const char **name);
#ifdef __cplusplus
}
#endif

#endif
