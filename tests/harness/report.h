/* Result lines, counters and the watchdog of the harness. */
#ifndef HARNESS_REPORT_H
#define HARNESS_REPORT_H

#include <stdbool.h>

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Names what runs next and restarts the watchdog. One thread only. */
void report_start(const char * format, ...) PRINTF_LIKE(1, 2);

/* Prints "ok NAME" or "not ok NAME" for the name given to report_start. */
bool report_result(bool ok);

/* Prints "SKIP NAME (why)": not run, and not a success. */
void report_skip(const char * name, const char * why, ...) PRINTF_LIKE(2, 3);

/* A "# " line: detail of what just failed, or a number worth reading. */
void report_note(const char * format, ...) PRINTF_LIKE(1, 2);

/* Seconds without a result after which the watchdog aborts; 0: never. */
void report_watchdog(unsigned seconds);

/* Prints "N passed, N failed, N skipped"; the exit status of the program. */
int report_finish(void);

#endif
