/* Conditioning that is not where a block on a device wants it: a sentence, and the block and its tape go on. */
#include "block_on_device.h"

#include <heddle/train/tape.h>

static const heddle_stage_kind kinds[] = {HEDDLE_STAGE_CROSS, HEDDLE_STAGE_MLP};

/* A block, its tape, and memory of everybody's. */
typedef struct inputs {
    heddle_comm *comm, *other; /* of two devices */
    there t;
    heddle_box box;
    heddle_tape *tape;
    heddle_tensor x, dx;
    void *elsewhere; /* on the other device */
    heddle_conditioning_gradient gradient;
} inputs;

static void inputs_open(inputs *in, heddle_stage_kind kind)
{
    const heddle_comm_options first = device_options("cuda:0", HEDDLE_WIRE_HOST);
    const heddle_block_options options = small_options(kind, HEDDLE_F32);
    in->comm = alone();
    HD_OK(heddle_comm_open(&in->other, "self", &first));
    in->box = whole_box(&options.shape);
    there_open(&in->t, in->comm, &options);
    const size_t bytes = (size_t)in->t.p.elems * sizeof(float);
    in->x = there_tensor(&in->t, placed_on(in->comm, in->t.p.x, bytes), &in->box);
    in->dx = there_tensor(&in->t, placed_on(in->comm, in->t.p.x, bytes), &in->box);
    in->elsewhere = placed_on(in->other, in->t.p.x, bytes);
    in->gradient =
        (heddle_conditioning_gradient){placed_on(in->comm, in->t.p.x, bytes), placed_on(in->comm, in->t.p.x, bytes)};
    HD_OK(heddle_tape_create(&in->tape, in->t.p.block, NULL));
}

static void inputs_close(inputs *in)
{
    heddle_tape_destroy(in->tape);
    heddle_buffer_free(in->comm, in->x.data);
    heddle_buffer_free(in->comm, in->dx.data);
    heddle_buffer_free(in->comm, in->gradient.vector);
    heddle_buffer_free(in->comm, in->gradient.text);
    heddle_buffer_free(in->other, in->elsewhere);
    there_close(&in->t);
    heddle_comm_destroy(in->other);
    heddle_comm_destroy(in->comm);
}

static heddle_status forward(const inputs *in, const heddle_conditioning *given)
{
    return heddle_block_forward_tape(in->t.p.block, &in->x, &in->box, given, in->tape, HEDDLE_NO_STREAM);
}

static heddle_status backward(const inputs *in, const heddle_conditioning *given,
                              const heddle_conditioning_gradient *wanted)
{
    return heddle_block_backward(in->t.p.block, &in->dx, given, wanted, in->tape, HEDDLE_NO_STREAM);
}

/* Both ways. */
static void is_refused(const inputs *in, const heddle_conditioning *given, const char *what, const char *where)
{
    for (int back = 0; back < 2; back++) {
        HD_FAILS(HEDDLE_ERR_ARG, back ? backward(in, given, &in->gradient) : forward(in, given));
        assert_true(says(back ? "heddle_block_backward: " : "heddle_block_forward_tape: ") && says(what) &&
                    says(where));
    }
}

static void check_refusals(const inputs *in, heddle_stage_kind kind)
{
    const int is_cross = kind == HEDDLE_STAGE_CROSS;
    const char *what = is_cross ? "the text at " : "the conditioning vector at ";
    heddle_conditioning given = in->t.conditioning;
    const float **at = is_cross ? &given.text : &given.vector;
    *at = in->t.p.x;
    is_refused(in, &given, what, " is in host memory; the block works on device cuda:1");
    *at = in->elsewhere;
    is_refused(in, &given, what, " is in the memory of another device");
    given = in->t.conditioning;
    for (int i = 0; i < 2 && is_cross; i++) {
        given.text_lengths = i == 0 ? in->x.data : in->elsewhere;
        is_refused(in, &given, "the lengths of texts at ", " are in the memory of a device, wanted the host's");
    }
    for (int i = 0; i < 2; i++) {
        float *wrong = i == 0 ? in->t.p.x : in->elsewhere;
        const heddle_conditioning_gradient wanted = {wrong, wrong};
        HD_FAILS(HEDDLE_ERR_ARG, backward(in, &in->t.conditioning, &wanted));
        assert_true(says("heddle_block_backward: a gradient of the conditioning at "));
    }
}

/* Before and behind them a call does the same. */
HD_CASE(conditioning_elsewhere_is_refused)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        inputs in;
        inputs_open(&in, kinds[i]);
        const size_t bytes = (size_t)in.t.p.elems * sizeof(float);
        void *got[2];
        for (int turn = 0; turn < 2; turn++) {
            HD_OK(device_copy_now(in.comm, in.x.data, in.t.p.x, bytes));
            HD_OK(device_copy_now(in.comm, in.dx.data, in.t.p.x, bytes));
            HD_OK(forward(&in, &in.t.conditioning));
            if (turn == 1) {
                check_refusals(&in, kinds[i]);
            }
            HD_OK(backward(&in, &in.t.conditioning, &in.gradient));
            HD_OK(device_settle(in.comm, HEDDLE_NO_STREAM));
            got[turn] = brought_back(in.comm, in.dx.data, bytes);
        }
        assert_memory_equal(got[0], got[1], bytes);
        free(got[0]);
        free(got[1]);
        inputs_close(&in);
    }
}
