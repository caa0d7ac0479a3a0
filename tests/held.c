#define _GNU_SOURCE
#include "held.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61 /* "Yama" */
#endif

static void pause_ms(unsigned ms) {
    struct timespec left = { ms / 1000, (long) (ms % 1000) * 1000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* The state letter of a process: what follows its name in parentheses. */
static char state_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
    FILE * f = fopen(path, "r");
    size_t n = f != NULL ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f != NULL) {
        fclose(f);
    }
    text[n] = '\0';
    const char * end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : '?';
}

static enum held hold_process(pid_t pid, unsigned ms) {
    enum held held = HELD_FAILED;
    if (kill(pid, SIGSTOP) != 0) {
        return HELD_NOT_PERMITTED;
    }
    for (int i = 0; i < 5000 && held != HELD; i++) {
        held = state_of(pid) == 'T' ? HELD : HELD_FAILED;
        pause_ms(1);
    }
    pause_ms(ms);
    kill(pid, SIGCONT);
    return held;
}

/* A signal would not do: the plugin's threads block all of them. */
static enum held hold_thread(pid_t tid, unsigned ms, int at_stop) {
    int status;
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
        return errno == EPERM || errno == ENOSYS ? HELD_NOT_PERMITTED : HELD_FAILED;
    }
    if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 || waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status)) {
        return HELD_FAILED; /* our end lets it go */
    }
    close(at_stop);
    pause_ms(ms);
    return ptrace(PTRACE_DETACH, tid, NULL, NULL) == 0 ? HELD : HELD_FAILED;
}

pid_t held_start(pid_t tid, unsigned milliseconds) {
    const pid_t self = getpid();
    int         at_stop[2]; /* closed by the child once the thread is held, or by its end */
    prctl(PR_SET_PTRACER, -1ul /* any */, 0, 0, 0);
    fflush(NULL);
    if (pipe(at_stop) != 0) {
        return -1;
    }
    const pid_t child = fork();
    if (child == 0) {
        close(at_stop[0]);
        _exit(tid != 0 ? hold_thread(tid, milliseconds, at_stop[1]) : hold_process(self, milliseconds));
    }
    close(at_stop[1]);
    char none;
    while (tid != 0 && read(at_stop[0], &none, 1) < 0 && errno == EINTR) {
    }
    close(at_stop[0]);
    return child;
}

enum held held_end(pid_t child) {
    int   status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
    }
    return child > 0 && ended == child && WIFEXITED(status) ? (enum held) WEXITSTATUS(status) : HELD_FAILED;
}

int held_threads(const char * prefix, struct held_thread * threads, int max) {
    DIR *           dir   = opendir("/proc/self/task");
    int             found = 0;
    struct dirent * entry;
    while (dir != NULL && found < max && (entry = readdir(dir)) != NULL) {
        struct held_thread * t = &threads[found];
        char                 path[300];
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        FILE * f = fopen(path, "r");
        if (f != NULL && fgets(t->name, sizeof(t->name), f) != NULL && strncmp(t->name, prefix, strlen(prefix)) == 0) {
            t->name[strcspn(t->name, "\n")] = '\0';
            t->tid                          = (pid_t) atol(entry->d_name);
            found++;
        }
        if (f != NULL) {
            fclose(f);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}
