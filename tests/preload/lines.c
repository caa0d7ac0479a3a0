#include "lines.h"

#include "../harness/report.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "ggml_vk_comm: "

enum { MAX_LINES = 256, LINE_SIZE = 2048 };

static struct {
    enum ggml_log_level level;
    char                text[LINE_SIZE];
} lines[MAX_LINES];
static int             count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char * level_name(enum ggml_log_level level) {
    static const char * const names[] = { "none", "debug", "info", "warn", "error" };
    return (unsigned) level < sizeof(names) / sizeof(names[0]) ? names[level] : "?";
}

static void on_line(enum ggml_log_level level, const char * text, void * context) {
    (void) context;
    if (strncmp(text, PREFIX, strlen(PREFIX)) != 0) {
        fputs(text, stderr);
        return;
    }
    fprintf(stderr, "[%s] %s", level_name(level), text);
    pthread_mutex_lock(&lock);
    if (count < MAX_LINES) {
        lines[count].level = level;
        snprintf(lines[count].text, LINE_SIZE, "%s", text + strlen(PREFIX));
        count++;
    }
    pthread_mutex_unlock(&lock);
}

void lines_start(void) {
    ggml_log_set(on_line, NULL);
}

void lines_forget(void) {
    count = 0;
}

static bool matches(int i, enum ggml_log_level level) {
    return level == GGML_LOG_LEVEL_NONE || lines[i].level == level;
}

int lines_count(enum ggml_log_level level) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        n += matches(i, level);
    }
    return n;
}

const char * lines_find(enum ggml_log_level level, const char * text) {
    for (int i = 0; i < count; i++) {
        if (matches(i, level) && strstr(lines[i].text, text) != NULL) {
            return lines[i].text;
        }
    }
    return NULL;
}

bool lines_one(enum ggml_log_level level, const char * const texts[]) {
    const int n = lines_count(level);
    if (n != 1) {
        report_note("%d lines at level %s instead of one", n, level_name(level));
        return false;
    }
    const char * line = lines_find(level, "");
    for (int i = 0; texts[i] != NULL; i++) {
        if (strstr(line, texts[i]) == NULL) {
            report_note("the line does not contain '%s': %s", texts[i], line);
            return false;
        }
    }
    return true;
}
