/* A small model: its dims, then `rest`. */
#ifndef HD_TEST_SMALL_MODEL_H
#define HD_TEST_SMALL_MODEL_H

#define MODEL_OF_DIMS(channels, rest)                                                                                  \
    "model: small\n"                                                                                                   \
    "dtype: f32\n"                                                                                                     \
    "dims:\n"                                                                                                          \
    "  b: {size: 1, role: batch}\n"                                                                                    \
    "  t: {size: 5, role: seq}\n"                                                                                      \
    "  s: {size: 7, role: seq}\n"                                                                                      \
    "  c: {size: " channels ", role: channel}\n" rest

#endif
