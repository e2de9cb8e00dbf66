/* The host as a device library, and what is said of devices that nobody serves. */
#include "case.h"
#include "runtime/base/base.h"
#include "runtime/device/enqueued.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

HD_CASE(the_host_is_a_device)
{
    const heddle_device *host = heddle_device_host();
    void *memory = NULL, *event = NULL;
    int done = 0;
    char back[5] = "";
    HD_OK(host->alloc(&memory, 0, sizeof back));
    assert_int_equal((uintptr_t)memory % 256, 0);
    HD_OK(host->copy(memory, 3, "warp weft", 5, 2, 2, 0, HEDDLE_NO_STREAM)); /* two rows: "wa", "we" */
    ((char *)memory)[2] = '-';
    HD_OK(host->event_create(&event, 0));
    HD_OK(host->event_record(event, 0, HEDDLE_NO_STREAM));
    HD_OK(host->stream_wait(HEDDLE_NO_STREAM, event, 0));
    HD_OK(host->event_test(event, 0, &done));
    assert_int_equal(done, 1);
    HD_OK(host->copy(back, 0, memory, 0, sizeof back, 1, 0, HEDDLE_NO_STREAM));
    assert_memory_equal(back, "wa-we", sizeof back);
    host->event_destroy(event, 0);
    host->free(memory, 0);
}

static void says(const char *wanted)
{
    if (strstr(heddle_last_error(), wanted) == NULL) {
        fail_msg("'%s' is not in: %s", wanted, heddle_last_error());
    }
}

HD_CASE(memory_of_nobody)
{
    HD_OK(hd_device_need(NULL, HEDDLE_SPACE_HOST, 0, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_device_need(NULL, HEDDLE_SPACE_DEVICE, 3, "tensor x", "threads"));
    says("tensor x: memory of device 3, but the communicator has no device (heddle_comm_attach_device)");
    says("the transport threads");
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(NULL, HEDDLE_SPACE_HOST, 1, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(NULL, (heddle_space)7, 0, "x", "threads"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(NULL, HEDDLE_SPACE_DEVICE, -1, "x", "threads"));
}

HD_CASE(of_the_host_only)
{
    HD_OK(hd_device_host_only(HEDDLE_SPACE_HOST, 0, "x"));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_device_host_only(HEDDLE_SPACE_DEVICE, 3, "attention"));
    says("attention: memory of device 3, but it works in host memory only");
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_host_only(HEDDLE_SPACE_HOST, 1, "x"));
}

HD_CASE(names_of_devices)
{
    static const char *const wrong[] = {
        "",        ":1",           "cuda:",   "cuda:x",         "cuda:1x",
        "cuda:-1", "cuda:1234567", "../cuda", "cuda:current:1", "a_kind_of_a_name_that_is_too_long_to_be_one"};
    hd_device *device = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        HD_FAILS(HEDDLE_ERR_PARSE, hd_device_open(&device, wrong[i], NULL, 0));
    }
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_device_open(&device, "pigeon:1", NULL, 0));
    says("devices of kind pigeon are not available: there is no libheddle_pigeon.so in /");
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_open(&device, "pigeon", "loft", 0));
    says("module_folder is 'loft'");
}

/* A library that is there, and has another entry point or none. */
HD_CASE(libraries_of_something_else)
{
    char folder[] = "/tmp/heddle-device-XXXXXX", path[64];
    hd_device *device = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/libheddle_pigeon.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("a file that is long enough to be looked at, but no library at all, as its first bytes say", file);
    fclose(file);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_device_open(&device, "pigeon", folder, 0));
    says("their library cannot be loaded: ");
    says("invalid ELF header");
    remove(path);
    remove(folder);
}

/* The host's table as that of a device: what a device's handle does with it. */
HD_CASE(buffers_of_a_device)
{
    hd_device device = {.library = heddle_device_host(), .number = 0, .opened_by = getpid()};
    void *memory[3];
    hd_stray stray = HD_STRAY_NOT;
    for (int i = 0; i < 3; i++) {
        HD_OK(hd_device_alloc(&device, &memory[i], (size_t)i * 100, HD_DEVICE_FOR_PEERS));
    }
    assert_int_equal(hd_device_release(&device, memory[1]), 1);
    assert_int_equal(hd_device_release(&device, memory[1]), 0);
    assert_int_equal(hd_device_release(&device, &device), 0);
    assert_int_equal(hd_device_release(&device, memory[2]), 1);
    HD_OK(hd_device_stray(&stray, &device, HEDDLE_SPACE_DEVICE, memory[0]));
    assert_int_equal(stray, HD_STRAY_HOST); /* the host's table knows no other memory */
    HD_OK(hd_device_stray(&stray, &device, HEDDLE_SPACE_HOST, memory[0]));
    assert_int_equal(stray, HD_STRAY_NOT);
    assert_int_equal(hd_device_release(&device, memory[0]), 1);
    assert_null(device.buffers);
    HD_FAILS(HEDDLE_ERR_ARG, hd_device_need(&device, HEDDLE_SPACE_DEVICE, 1, "x", "threads"));
    says("x: memory of device 1, the communicator's is 0");
    HD_OK(hd_device_need(&device, HEDDLE_SPACE_DEVICE, 0, "x", "threads"));
}

/* Whose memory it is that a pass of a model has again and again. */
static _Atomic int looks;

static heddle_status look_for(heddle_space *space, int *device, const void *memory)
{
    (void)memory;
    looks++;
    *space = HEDDLE_SPACE_DEVICE;
    *device = 7;
    return HEDDLE_OK;
}

static void free_nothing(void *memory, int device)
{
    (void)memory;
    (void)device;
}

/* Looks of the library for the n-th array. */
static int looks_for(hd_device *device, heddle_space space, int n)
{
    static const char arrays[64];
    hd_stray stray = HD_STRAY_NOT;
    const int before = looks;
    HD_OK(hd_device_stray(&stray, device, space, arrays + n));
    assert_int_equal(stray, space == HEDDLE_SPACE_DEVICE ? HD_STRAY_NOT : HD_STRAY_DEVICE);
    return looks - before;
}

HD_CASE(arrays_that_were_seen_lately)
{
    const heddle_device library = {.look = look_for, .free = free_nothing};
    hd_device device = {.library = &library, .number = 7};
    for (int n = 0; n < HD_DEVICE_SEEN; n++) {
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, n), 1);
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, n), 0);
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_HOST, n), 1); /* takes no place */
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_HOST, HD_DEVICE_SEEN), 1);
    }
    for (int n = 0; n < HD_DEVICE_SEEN; n++) {
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, n), 0);
    }
    assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, HD_DEVICE_SEEN), 1); /* in the place of the first one */
    assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, HD_DEVICE_SEEN), 0);
    assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, 1), 0);
    assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, 0), 1);
    hd_device_free(&device, NULL);
    for (int n = 0; n < HD_DEVICE_SEEN; n++) {
        assert_int_equal(looks_for(&device, HEDDLE_SPACE_DEVICE, n), 1);
    }
}

static void *see_and_forget(void *arg)
{
    static _Atomic int array[8];
    uintptr_t wrong = 0;
    for (int i = 0; i < 1000; i++) {
        hd_stray stray = HD_STRAY_HOST;
        wrong += hd_device_stray(&stray, arg, HEDDLE_SPACE_DEVICE, &array[i % 8]) != HEDDLE_OK;
        wrong += stray != HD_STRAY_NOT;
        if (i % 100 == 0) {
            hd_device_free(arg, NULL);
        }
    }
    return (void *)wrong;
}

/* By threads that each have a block of one communicator. */
HD_CASE(arrays_are_seen_by_threads)
{
    const heddle_device library = {.look = look_for, .free = free_nothing};
    hd_device device = {.library = &library, .number = 7};
    pthread_t threads[3];
    void *wrong = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, see_and_forget, &device), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_true(looks >= 8 && looks < 3000);
}

/* An event that happens when it is asked for the n-th time, and what else a wait looks at. */
static int asked, happens_at, fails_at, looked, look_fails_at;

static heddle_status ask_event(void *event, int device, int *done)
{
    (void)event;
    assert_int_equal(device, 7);
    asked++;
    *done = asked == happens_at;
    return asked == fails_at ? heddle_set_error(HEDDLE_ERR_DEVICE, "the device is gone") : HEDDLE_OK;
}

static heddle_status look_around(void *arg)
{
    assert_ptr_equal(arg, &looked);
    return ++looked == look_fails_at ? heddle_set_error(HEDDLE_ERR_PEER, "rank 3 gave up") : HEDDLE_OK;
}

static heddle_status await(int *done, int64_t deadline_ns, int n, int error, int look_error)
{
    const heddle_device library = {.event_test = ask_event};
    const hd_device device = {.library = &library, .number = 7};
    asked = looked = 0;
    happens_at = n;
    fails_at = error;
    look_fails_at = look_error;
    *done = -1;
    hd_enqueued e = {.device = &device, .mark = 2, .last_mark = 2};
    return hd_enqueued_await(done, &e, deadline_ns, look_around, &looked);
}

HD_CASE(an_event_is_waited_for)
{
    int done = 0;
    const int64_t late_ns = hd_now_ns() + 60000000000;
    HD_OK(await(&done, late_ns, 3, 0, 0));
    assert_true(done == 1 && asked == 3 && looked == 2); /* what has happened needs no look */
    HD_OK(await(&done, 0, 1, 0, 1));                     /* too late, but it has happened */
    assert_true(done == 1 && looked == 0);
    HD_OK(await(&done, 0, 0, 0, 0));
    assert_true(done == 0 && asked == 1 && looked == 1);
    const int64_t began_ns = hd_now_ns();
    HD_OK(await(&done, began_ns + 5000000, 0, 0, 0));
    assert_true(done == 0 && asked > 1 && hd_now_ns() > began_ns + 5000000);
    HD_FAILS(HEDDLE_ERR_PEER, await(&done, late_ns, 9, 0, 4));
    assert_true(done == 0 && asked == 4);
    says("rank 3 gave up");
    HD_FAILS(HEDDLE_ERR_DEVICE, await(&done, late_ns, 0, 5, 0));
    assert_true(done == 0 && looked == 4);
}
