/* Reads a line of JSON from its input and asks for what the second line names: kind and name. Prints the answer, or "no". */
#include "json.h"

#include <stdio.h>
#include <string.h>

static void print(const char *text) {
    for (; *text; text++) printf("%02x", (unsigned char)*text);
    printf("\n");
}

int main(void) {
    static char line[1 << 20], text[1 << 20], again[1 << 20];
    char kind[16], name[256];
    while (fgets(line, sizeof line, stdin) != NULL && scanf("%15s %255[^\n]%*c", kind, name) == 2) {
        struct reading object;
        struct writing out;
        const char *at = NULL;
        double number;
        long long whole;
        bool truth, good = json_read(&object, line, strcspn(line, "\n"));
        if (!good) printf("bad\n");
        else if (kind[0] == 't' && json_text(&object, name, text, sizeof text)) {
            /* Written and read again it is the same. */
            json_begin(&out, again, sizeof again);
            json_put_text(&out, "x", text);
            json_end(&out);
            memset(text, 0, sizeof text);
            good = json_read(&object, again, out.used) && json_text(&object, "x", text, sizeof text);
            print(good ? text : "not the same");
        } else if (kind[0] == 'n' && json_number(&object, name, &number)) printf("%.17g\n", number);
        else if (kind[0] == 'w' && json_whole(&object, name, &whole)) printf("%lld\n", whole);
        else if (kind[0] == 'b' && json_truth(&object, name, &truth)) printf("%s\n", truth ? "true" : "false");
        else if (kind[0] == 'l') {
            while (json_next_text(&object, name, &at, text, sizeof text)) print(text);
            printf("end\n");
        } else if (kind[0] == 'i') {
            while (json_next_whole(&object, name, &at, &whole)) printf("%lld\n", whole);
            printf("end\n");
        } else printf("no\n");
        fflush(stdout);
    }
    return 0;
}
