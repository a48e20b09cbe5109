// The few lines of test framework that a native test needs: one executable per part, this header once in it.
//
//     TEST(an_empty_arena_has_no_slots) {
//         CHECK_EQ(arena.slots(), 0);
//         CHECK(arena.find(0, 0) == nullptr);
//     }
//
// A check that fails prints where and what, and ends its test; the others still run. Exit status: 0 if all held, else 1.
// `./arena_test sweep` runs only the tests whose names contain "sweep".
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace check {

struct Failed {};  // thrown by a check that did not hold, once it has said so

struct Test {
    const char * name;
    void (*run)();
};

inline std::vector<Test> & tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char * name, void (*run)()) { tests().push_back({name, run}); }
};

template <class T, class = void>
struct CanPrint : std::false_type {};
template <class T>
struct CanPrint<T, std::void_t<decltype(std::declval<std::ostream &>() << std::declval<const T &>())>>
    : std::true_type {};

// Bytes print as numbers, enumerators as theirs, and what has no form of its own as a mark.
template <class T>
void print(std::ostream & out, const T & value) {
    if constexpr (std::is_same_v<T, bool>) {
        out << (value ? "true" : "false");
    } else if constexpr (std::is_enum_v<T>) {
        out << +static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (std::is_integral_v<T>) {
        out << +value;
    } else if constexpr (std::is_same_v<T, std::nullptr_t>) {
        out << "nullptr";
    } else if constexpr (std::is_convertible_v<const T &, std::string>) {
        out << '"' << std::string(value) << '"';
    } else if constexpr (CanPrint<T>::value) {
        out.precision(17);
        out << value;
    } else {
        out << "(no printed form)";
    }
}

// Integers by value, whatever their signs; C strings by their text; everything else by ==.
template <class A, class B>
bool equal(const A & a, const B & b) {
    if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
        using Wide = std::common_type_t<A, B>;
        return (a < A{}) == (b < B{}) && static_cast<Wide>(a) == static_cast<Wide>(b);
    } else if constexpr (std::is_convertible_v<const A &, const char *> &&
                         std::is_convertible_v<const B &, const char *> && !std::is_same_v<A, std::nullptr_t> &&
                         !std::is_same_v<B, std::nullptr_t>) {
        return std::strcmp(a, b) == 0;
    } else {
        return a == b;
    }
}

[[noreturn]] inline void fail(const char * file, int line, const std::string & what) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    throw Failed{};
}

template <class A, class B>
void expect_equal(const char * file, int line, const char * text, const A & a, const B & b) {
    if (equal(a, b)) return;
    std::ostringstream out;
    out << "CHECK_EQ(" << text << ") failed: ";
    print(out, a);
    out << " != ";
    print(out, b);
    fail(file, line, out.str());
}

inline bool passes(const Test & test) {
    try {
        test.run();
        std::printf("ok    %s\n", test.name);
        return true;
    } catch (const Failed &) {
        std::printf("FAIL  %s\n", test.name);
    } catch (const std::exception & error) {
        std::printf("FAIL  %s: exception: %s\n", test.name, error.what());
    }
    return false;
}

inline int run(int argc, char ** argv) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    int failed = 0, ran = 0;
    for (const Test & test : tests()) {
        if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
        ++ran;
        if (!passes(test)) ++failed;
    }
    std::printf("%d tests, %d failed\n", ran, failed);
    return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) check::fail(__FILE__, __LINE__, "CHECK(" #condition ") failed"); \
    } while (0)

#define CHECK_EQ(...) check::expect_equal(__FILE__, __LINE__, #__VA_ARGS__, __VA_ARGS__)

#define TEST(name)                                                         \
    static void test_##name();                                             \
    static const check::Registered registered_##name{#name, &test_##name}; \
    static void test_##name()

int main(int argc, char ** argv) { return check::run(argc, argv); }
