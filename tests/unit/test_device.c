/* The host as a device library, and what is said of devices that nobody serves. */
#include "case.h"
#include "runtime/device/device.h"

#include <stdint.h>
#include <string.h>

static void the_host_is_a_device(void **state)
{
    (void)state;
    const heddle_device *host = heddle_device_host();
    void *memory = NULL, *event = NULL;
    int done = 0;
    char back[5] = "";
    HD_OK(host->alloc(&memory, 0, sizeof back));
    assert_int_equal((uintptr_t)memory % 256, 0);
    HD_OK(host->copy(memory, "warp", sizeof back, 0, HEDDLE_NO_STREAM));
    HD_OK(host->event_create(&event, 0));
    HD_OK(host->event_record(event, HEDDLE_NO_STREAM));
    HD_OK(host->stream_wait(HEDDLE_NO_STREAM, event));
    HD_OK(host->event_test(event, &done));
    assert_int_equal(done, 1);
    HD_OK(host->copy(back, memory, sizeof back, 0, HEDDLE_NO_STREAM));
    assert_string_equal(back, "warp");
    host->event_destroy(event);
    host->free(memory, 0);
}

static void other_spaces_have_no_library(void **state)
{
    (void)state;
    HD_OK(hd_device_need(HEDDLE_SPACE_HOST, 0, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_device_need(HEDDLE_SPACE_DEVICE, 3, "tensor x", "threads"));
    assert_non_null(strstr(heddle_last_error(), "tensor x: memory of device 3"));
    assert_non_null(strstr(heddle_last_error(), "the transport threads"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(HEDDLE_SPACE_HOST, 1, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need((heddle_space)7, 0, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(HEDDLE_SPACE_DEVICE, -1, "x", "threads"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(the_host_is_a_device),
        cmocka_unit_test(other_spaces_have_no_library),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
