def trace_differences(given, expect):
    return ["todo"]
