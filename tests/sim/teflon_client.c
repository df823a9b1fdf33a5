// SPDX-License-Identifier: MIT
// Runs TFLite models with an external delegate, or without one ("cpu"):
//
//   client LIBTENSORFLOW DELEGATE|cpu (MODEL INPUT OUTPUT)...
//
// Both libraries are loaded at run time, so building this takes neither of them nor their headers.
// The calls are those of tensorflow/lite/c/c_api.h.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library, *plugin;

#ifdef KEEP_FREED
// Mesa 26.2 frees the handle lists of an operation that is spread over cores once for each job.
void free(void *pointer)
{
    (void)pointer;
}
#endif

static void *symbol(void *from, const char *name)
{
    void *found = dlsym(from, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return found;
}

static void *opened(const char *path)
{
    void *from = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!from) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return from;
}

static void *whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        exit(3);
    }
    *size = ftell(file);
    rewind(file);
    void *data = malloc(*size + 1);
    if (fread(data, 1, *size, file) != *size) {
        perror(path);
        exit(3);
    }
    fclose(file);
    return data;
}

static void report(const char *text)
{
    fprintf(stderr, "delegate: %s\n", text);
}

static void checked(const char *what, int status)
{
    if (status) {
        fprintf(stderr, "%s: status %d\n", what, status);
        exit(4);
    }
}

#define CALL(type, name, ...) ((type)symbol(library, name))(__VA_ARGS__)

static void run(const char *model_path, const char *input_path, const char *output_path,
                void *delegate)
{
    size_t size;
    void *data = whole(model_path, &size);
    void *model = CALL(void *(*)(const void *, size_t), "TfLiteModelCreate", data, size);
    void *options = CALL(void *(*)(void), "TfLiteInterpreterOptionsCreate");
    CALL(void (*)(void *, int), "TfLiteInterpreterOptionsSetNumThreads", options, 1);
    if (delegate)
        CALL(void (*)(void *, void *), "TfLiteInterpreterOptionsAddDelegate", options, delegate);
    void *interpreter =
        CALL(void *(*)(void *, void *), "TfLiteInterpreterCreate", model, options);
    if (!interpreter) {
        fprintf(stderr, "%s: no interpreter\n", model_path);
        exit(4);
    }
    checked("allocate", CALL(int (*)(void *), "TfLiteInterpreterAllocateTensors", interpreter));
    char *input = whole(input_path, &size), *rest = input;
    int inputs = CALL(int (*)(void *), "TfLiteInterpreterGetInputTensorCount", interpreter);
    for (int i = 0; i < inputs; i++) {
        void *tensor =
            CALL(void *(*)(void *, int), "TfLiteInterpreterGetInputTensor", interpreter, i);
        size_t bytes = CALL(size_t(*)(void *), "TfLiteTensorByteSize", tensor);
        if (bytes > (size_t)(input + size - rest)) {
            fprintf(stderr, "%s: too short\n", input_path);
            exit(4);
        }
        checked("input", CALL(int (*)(void *, void *, size_t), "TfLiteTensorCopyFromBuffer",
                              tensor, rest, bytes));
        rest += bytes;
    }
    checked("invoke", CALL(int (*)(void *), "TfLiteInterpreterInvoke", interpreter));
    FILE *file = fopen(output_path, "wb");
    int outputs = CALL(int (*)(void *), "TfLiteInterpreterGetOutputTensorCount", interpreter);
    for (int i = 0; i < outputs; i++) {
        const void *tensor =
            CALL(const void *(*)(void *, int), "TfLiteInterpreterGetOutputTensor", interpreter, i);
        size_t bytes = CALL(size_t(*)(const void *), "TfLiteTensorByteSize", tensor);
        void *out = malloc(bytes);
        checked("output", CALL(int (*)(const void *, void *, size_t), "TfLiteTensorCopyToBuffer",
                               tensor, out, bytes));
        if (!file || fwrite(out, 1, bytes, file) != bytes) {
            perror(output_path);
            exit(4);
        }
        free(out);
    }
    if (fclose(file)) {
        perror(output_path);
        exit(4);
    }
    CALL(void (*)(void *), "TfLiteInterpreterDelete", interpreter);
    CALL(void (*)(void *), "TfLiteInterpreterOptionsDelete", options);
    CALL(void (*)(void *), "TfLiteModelDelete", model);
    free(input);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc < 6 || argc % 3) {
        fprintf(stderr, "client LIBTENSORFLOW DELEGATE|cpu (MODEL INPUT OUTPUT)...\n");
        return 2;
    }
    library = opened(argv[1]);
    if (strcmp(argv[2], "cpu"))
        plugin = opened(argv[2]);
    for (int i = 3; i < argc; i += 3) {
        void *delegate = NULL;
        if (plugin) {
            void *(*create)(char **, char **, size_t, void (*)(const char *)) =
                symbol(plugin, "tflite_plugin_create_delegate");
            delegate = create(NULL, NULL, 0, report);
            if (!delegate) {
                fprintf(stderr, "no delegate\n");
                return 5;
            }
        }
        run(argv[i], argv[i + 1], argv[i + 2], delegate);
        if (delegate)
            ((void (*)(void *))symbol(plugin, "tflite_plugin_destroy_delegate"))(delegate);
    }
    return 0;
}
