// Stands where Python expects the kernel, and lets the emulator run each call (see driver.cpp).
#include <cstdio>
#include <cstdlib>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functions.h"

static void emulate(const char* name, const void* arguments) {
    char process[32], address[32];
    snprintf(process, sizeof process, "%d", (int)getpid());
    snprintf(address, sizeof address, "%p", arguments);
    pid_t child = fork();
    if (!child) {
        // The emulator keeps its own memory beside that of the program, and does not notice when a place is taken twice.
        // Where places are not drawn at random, its own are at the ends of the space, far from those of this process.
        personality(ADDR_NO_RANDOMIZE);
        execlp(EMULATOR, EMULATOR, DRIVER, process, name, address, (char*)nullptr);
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "%s: %s ended with status %d\n", EMULATOR, name, status);
        abort();
    }
}

extern "C" {
#define FUNCTION(name) void name(const void* arguments) { emulate(#name, arguments); }
FUNCTIONS(FUNCTION)
long fused_lanes() { return LANES; }
long fused_argument_bytes() { return ARGUMENT_BYTES; }
}
