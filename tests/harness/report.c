#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char     running[256] = "start-up";
static int      passed, failed, skipped;
static unsigned watchdog_seconds;

void report_start(const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(running, sizeof(running), format, args);
    va_end(args);
    alarm(watchdog_seconds);
}

bool report_result(bool ok) {
    printf("%s %s\n", ok ? "ok" : "not ok", running);
    fflush(stdout);
    passed += ok;
    failed += !ok;
    return ok;
}

void report_skip(const char * name, const char * why, ...) {
    char text[256];
    va_list args;
    va_start(args, why);
    vsnprintf(text, sizeof(text), why, args);
    va_end(args);
    printf("SKIP %s (%s)\n", name, text);
    fflush(stdout);
    skipped++;
}

void report_note(const char * format, ...) {
    va_list args;
    va_start(args, format);
    fputs("# ", stdout);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    fflush(stdout);
}

static void write_text(const char * text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) {
        abort();
    }
}

/* A hang is the likeliest failure of a collective: say where, leave a core. */
static void on_alarm(int signal_number) {
    (void) signal_number;
    write_text("\nharness: watchdog: no result in time from: ");
    write_text(running);
    write_text("\n");
    abort();
}

void report_watchdog(unsigned seconds) {
    watchdog_seconds = seconds;
    if (seconds > 0) {
        struct sigaction action;
        memset(&action, 0, sizeof(action));
        action.sa_handler = on_alarm;
        sigaction(SIGALRM, &action, NULL);
    }
    alarm(seconds);
}

int report_finish(void) {
    alarm(0);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (passed + failed == 0) {
        puts("nothing was run: no case matches");
    }
    return failed > 0 || passed == 0;
}
