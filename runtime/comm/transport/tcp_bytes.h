/* The bytes of a message in their order, wherever they lie. */
#ifndef HD_TCP_BYTES_H
#define HD_TCP_BYTES_H

#include <heddle/sys/transport.h>
#include <stddef.h>

size_t hd_message_bytes(const heddle_message *message);
/* Where byte `at` of them lies; *bytes: from there on in one piece. */
unsigned char *hd_message_piece(const heddle_message *message, unsigned char *buffer, size_t at, size_t *bytes);
/* `bytes` of them from `at` on: to `packed`, or from there to their places. */
void hd_message_pack(const heddle_message *message, const unsigned char *buffer, size_t at, unsigned char *packed,
                     size_t bytes);
void hd_message_unpack(const heddle_message *message, unsigned char *buffer, size_t at, const unsigned char *packed,
                       size_t bytes);

#endif
