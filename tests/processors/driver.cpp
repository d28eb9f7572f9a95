// Runs one function of the kernel on an emulated processor, in the memory of the process that asks.
//
//     driver PROCESS NAME ADDRESS
//
// The emulator sees nothing of that memory. So whatever page the function touches is brought when it is touched, at the
// address that it has there, and the bytes that have changed are written back at the end.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "functions.h"

#define DECLARE(name) extern "C" __attribute__((weak)) void name(const void*);
FUNCTIONS(DECLARE)

static const struct { const char* name; void (*run)(const void*); } functions[] = {
#define ENTRY(name) {#name, name},
    FUNCTIONS(ENTRY)
};

// What this program needs for itself it has from its beginning: a place that the emulator chose later could be one of
// the other process, and would be taken for it.
constexpr size_t PAGE = 4096, MOST = 1 << 17;
static char before[MOST][PAGE];
static char* places[MOST];
static size_t brought;
static int memory;

static void die(const char* why, const void* where) {
    fprintf(stderr, "%s at %p (%m)\n", why, where);
    _exit(3);
}

static void bring(int, siginfo_t* fault, void*) {
    char* at = (char*)((uintptr_t)fault->si_addr & ~(PAGE - 1));
    static char content[PAGE];
    if (brought == MOST || pread(memory, content, PAGE, (off_t)(uintptr_t)at) != (ssize_t)PAGE)
        die("the kernel touched memory that is not there", fault->si_addr);
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
        die("no page can be brought", at);
    memcpy(at, content, PAGE);
    memcpy(before[brought], content, PAGE);
    places[brought++] = at;
}

static void take_back(char* here, const char* was) {
    for (size_t i = 0; i < PAGE;) {
        if (here[i] == was[i]) { ++i; continue; }
        size_t end = i;
        while (end < PAGE && here[end] != was[end]) ++end;
        if (pwrite(memory, here + i, end - i, (off_t)(uintptr_t)(here + i)) != (ssize_t)(end - i))
            die("cannot write back", here + i);
        i = end;
    }
}

int main(int, char** words) {
    char place[64];
    snprintf(place, sizeof place, "/proc/%s/mem", words[1]);
    if ((memory = open(place, O_RDWR)) < 0) die("cannot open the memory of the process that asks", nullptr);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    struct sigaction action = {};
    action.sa_sigaction = bring;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    for (const auto& function : functions) {
        if (strcmp(function.name, words[2]) || !function.run) continue;
        function.run((const void*)strtoull(words[3], nullptr, 16));
        for (size_t i = 0; i < brought; ++i) take_back(places[i], before[i]);
        return 0;
    }
    die("there is no such function", nullptr);
}
