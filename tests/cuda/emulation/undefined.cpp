/* What -fsanitize=alignment, bounds, shift and their like find in a kernel ends its launch. */
#include "fibres.h"

/* The compiler passes a description that begins with the place in the source. */
struct source_place {
    const char *file;
    uint32_t line, column;
};

[[noreturn]] static void raise_undefined(const void *description, const char *what) {
    const source_place &place = *static_cast<const source_place *>(description);
    emulation::raise(0, "%s at %s:%u", what, place.file, place.line);
}

#define HANDLER(name, what, ...)                                                                                    \
    extern "C" void __ubsan_handle_##name(const void *description, ##__VA_ARGS__) {                                 \
        raise_undefined(description, what);                                                                         \
    }
HANDLER(type_mismatch_v1, "a pointer is not aligned to its type", const void *)
HANDLER(out_of_bounds, "an index is outside of its array", const void *)
HANDLER(shift_out_of_bounds, "a shift is as wide as its operand, or of a negative number", const void *, const void *)
HANDLER(add_overflow, "a sum of integers overflows", const void *, const void *)
HANDLER(sub_overflow, "a difference of integers overflows", const void *, const void *)
HANDLER(mul_overflow, "a product of integers overflows", const void *, const void *)
HANDLER(negate_overflow, "a negation overflows", const void *)
HANDLER(divrem_overflow, "an integer is divided by zero", const void *, const void *)
HANDLER(float_cast_overflow, "a float is out of the range of its integer", const void *)
HANDLER(builtin_unreachable, "it reaches what is marked unreachable")
HANDLER(missing_return, "a function ends without its value")
