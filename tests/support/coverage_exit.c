/* A coverage build's _exit: writes the counts first. Linked with --wrap=_exit. */
void __gcov_dump(void);
void __real__exit(int code) __attribute__((noreturn));
void __wrap__exit(int code) __attribute__((noreturn));

void __wrap__exit(int code)
{
    __gcov_dump();
    __real__exit(code);
}
