/* libFuzzer: a reshard line of any bytes. What is taken prints to a text that reads back the same, and on small meshes
 * every rank's sends mirror what the others receive. */
#include "runtime/reshard/compile.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 4096, MAX_RANKS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) {
        abort();
    }
}

static void round_trip(const heddle_reshard_line *line)
{
    char first[HEDDLE_LINE_BYTES], second[HEDDLE_LINE_BYTES];
    heddle_reshard_line again;
    require(heddle_reshard_format(first, sizeof first, line) == HEDDLE_OK);
    require(heddle_reshard_parse(&again, first) == HEDDLE_OK);
    require(memcmp(&again, line, sizeof again) == 0);
    require(heddle_reshard_format(second, sizeof second, &again) == HEDDLE_OK);
    require(strcmp(first, second) == 0);
}

static void compile_all(const heddle_reshard_line *line)
{
    hd_problem problem;
    if (heddle_mesh_size(&line->mesh) > MAX_RANKS || hd_problem_make(&problem, line) != HEDDLE_OK) {
        return;
    }
    for (int phase = 0; phase < problem.nphases; phase++) {
        uint64_t sent = 0, received = 0; /* what stays is counted, too: of many replicas beyond 64 bits */
        for (int rank = 0; rank < heddle_mesh_size(&line->mesh); rank++) {
            hd_pieces send, recv;
            require(hd_compile(&send, &problem, phase, rank, HD_SEND) == HEDDLE_OK);
            require(hd_compile(&recv, &problem, phase, rank, HD_RECV) == HEDDLE_OK);
            for (int i = 0; i < send.count; i++) {
                sent += (uint64_t)heddle_box_elems(&send.piece[i].box);
            }
            for (int i = 0; i < recv.count; i++) {
                received += (uint64_t)heddle_box_elems(&recv.piece[i].box);
            }
            hd_pieces_free(&send);
            hd_pieces_free(&recv);
        }
        require(sent == received);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MAX_TEXT + 1];
    heddle_reshard_line line;
    size = size < MAX_TEXT ? size : MAX_TEXT;
    memcpy(text, data, size);
    text[size] = '\0';
    if (heddle_reshard_parse(&line, text) == HEDDLE_OK) {
        round_trip(&line);
        compile_all(&line);
    } else {
        require(strstr(heddle_last_error(), "column") != NULL);
    }
    return 0;
}
