/* The plugin's log lines, as ggml's log callback gets them. */
#ifndef LINES_H
#define LINES_H

#include "ggml.h"

#include <stdbool.h>

/* Everything is still written to stderr, ours with its level in front. */
void lines_start(void);
void lines_forget(void);

/* Lines of the plugin's at a level, or at any with GGML_LOG_LEVEL_NONE. */
int lines_count(enum ggml_log_level level);

/* The first of them that contains text; NULL if none does. */
const char * lines_find(enum ggml_log_level level, const char * text);

/* True if exactly one line of a level came, and it contains all texts, a list
 * that ends with NULL. Says what else it found. */
bool lines_one(enum ggml_log_level level, const char * const texts[]);

#endif
