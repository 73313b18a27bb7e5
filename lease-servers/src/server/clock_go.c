/* A wall clock that is moved while a program written in Go runs, which asks the kernel without the C library: by functions that the kernel puts
 * into each process, and whose place it says in the auxiliary vector. Preloaded into the program (LD_PRELOAD), this names another place there, before
 * Go looks: this file once more, as it is on disk, whose function adds whole seconds to the time of day. They are the first eight bytes of the
 * file that PRIVATE_SERVER_CLOCK names. Clocks that count from the start of the system stay as they are.
 *
 * Nothing relocates that second image, so the function uses neither other functions nor variables: the seconds are at a fixed address. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AHEAD_S ((volatile int64_t *)0x5eed00000000)

int __vdso_clock_gettime(clockid_t which, struct timespec *now) {
    long failed;
    __asm__ volatile("syscall" : "=a"(failed) : "a"(SYS_clock_gettime), "D"((long)which), "S"(now) : "rcx", "r11", "memory");
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *AHEAD_S;
    return (int)failed;
}

static void *in_memory(const char *name, void *where, int rights, int how) {
    struct stat facts;
    void *found = MAP_FAILED;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return found;
    if (!fstat(file, &facts)) found = mmap(where, (size_t)facts.st_size, rights, how, file, 0);
    close(file);
    return found;
}

__attribute__((constructor)) static void begin(int count, char **arguments, char **environment) {
    const char *name = getenv("PRIVATE_SERVER_CLOCK");
    Dl_info itself;
    (void)count, (void)arguments;
    if (!name || !dladdr((void *)begin, &itself)) return;
    if (in_memory(name, (void *)AHEAD_S, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE) != (void *)AHEAD_S) return;
    void *image = in_memory(itself.dli_fname, 0, PROT_READ | PROT_EXEC, MAP_PRIVATE);
    if (image == MAP_FAILED) return;
    while (*environment) environment++;
    for (Elf64_auxv_t *entry = (Elf64_auxv_t *)(environment + 1); entry->a_type != AT_NULL; entry++)
        if (entry->a_type == AT_SYSINFO_EHDR) entry->a_un.a_val = (uint64_t)image;
}
