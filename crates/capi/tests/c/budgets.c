/* Two processes share a budget: neither takes what the other holds, and what is idle in one goes to the other. */
#define _POSIX_C_SOURCE 200809L
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, LIMIT = 64 * MIB, MOST = 40 * MIB };

static char name[64];

static millpond_pool *pool_of(millpond_budget *budget) {
    millpond_context *context;
    millpond_pool_options options;
    millpond_pool *pool;
    OK(millpond_context_sim(NULL, &context));
    OK(millpond_pool_options_init(&options, sizeof options));
    options.budget = budget;
    OK(millpond_pool_create(context, &options, &pool));
    OK(millpond_context_release(context));
    return pool;
}

/* Each process tells the other when it is done with a step. */
static void tell(int to) { CHECK(write(to, "x", 1) == 1); }

static void wait_for(int from) {
    char byte;
    CHECK(read(from, &byte, 1) == 1);
}

static void other_process(int from, int to) {
    millpond_budget *budget;
    void *block;
    OK(millpond_budget_named(name, LIMIT, &budget));
    millpond_pool *pool = pool_of(budget);
    OK(millpond_alloc(pool, MOST, NULL, &block));
    tell(to);
    wait_for(from);
    OK(millpond_free(pool, block, NULL)); /* it stays with the pool, until somebody asks */
    tell(to);
    wait_for(from);
    OK(millpond_pool_release(pool));
    OK(millpond_budget_release(budget));
}

static void this_process(int from, int to, pid_t other) {
    millpond_budget *budget, *same;
    millpond_tenant tenants[4];
    size_t limit, held, count;
    void *block;
    wait_for(from);
    OK(millpond_budget_find(name, &budget));
    CHECK(budget != NULL);
    OK(millpond_budget_named(name, 1, &same));
    OK(millpond_budget_read(same, &limit, &held));
    CHECK(limit == LIMIT && held == MOST);
    OK(millpond_budget_release(same));
    millpond_pool *pool = pool_of(budget);
    OK(millpond_budget_set_patience(budget, 0));
    FAILS(millpond_alloc(pool, MOST, NULL, &block), OUT_OF_MEMORY, "holds 40.00 MiB");
    OK(millpond_budget_tenants(budget, NULL, sizeof *tenants, 0, &count));
    CHECK(count == 2);
    OK(millpond_budget_tenants(budget, tenants, sizeof *tenants, 4, &count));
    CHECK(count == 2 && tenants[0].pid == (uint32_t)other && tenants[0].held == MOST && tenants[0].floor == 0);
    CHECK(tenants[0].claim == UINT64_MAX && tenants[0].program[0] != 0 && tenants[1].pid == (uint32_t)getpid());
    tell(to);
    wait_for(from);
    OK(millpond_budget_set_patience(budget, 20000));
    OK(millpond_alloc(pool, MOST, NULL, &block));
    FAILS(millpond_budget_set_floor(budget, LIMIT + 1), BAD_OPTION, "use at most 67108864");
    OK(millpond_budget_set_floor(budget, LIMIT));
    OK(millpond_budget_set_claim(budget, MOST));
    OK(millpond_budget_set_limit(budget, LIMIT / 2));
    OK(millpond_budget_read(budget, &limit, &held));
    CHECK(limit == LIMIT / 2 && held == MOST);
    OK(millpond_free(pool, block, NULL));
    tell(to);
    OK(millpond_pool_release(pool));
    OK(millpond_budget_release(budget));
}

static void mistakes(void) {
    millpond_budget *budget, *nobodys;
    size_t count;
    FAILS(millpond_budget_named("a/b", LIMIT, &budget), BAD_OPTION, "letters");
    FAILS(millpond_budget_named(NULL, LIMIT, &budget), NULL_ARGUMENT, "name");
    FAILS(millpond_budget_find(NULL, &budget), NULL_ARGUMENT, "name");
    OK(millpond_budget_find("nobody-has-it", &nobodys));
    CHECK(nobodys == NULL);
    OK(millpond_budget_create(LIMIT, &budget));
    FAILS(millpond_budget_set_floor(budget, 1), BAD_OPTION, "Budget::named");
    FAILS(millpond_budget_set_claim(budget, 1), BAD_OPTION, "Budget::named");
    FAILS(millpond_budget_set_patience(budget, 1), BAD_OPTION, "Budget::named");
    FAILS(millpond_budget_tenants(budget, NULL, sizeof(millpond_tenant), 1, &count), NULL_ARGUMENT, "tenants");
    OK(millpond_budget_tenants(budget, NULL, sizeof(millpond_tenant), 0, &count));
    CHECK(count == 0);
    OK(millpond_budget_release(budget));
}

int main(void) {
    int there[2], back[2], status;
    char folder[] = "/tmp/millpond-c-XXXXXX", file[256];
    CHECK(mkdtemp(folder) != NULL && setenv("XDG_RUNTIME_DIR", folder, 1) == 0);
    snprintf(name, sizeof name, "c-%ld", (long)getpid());
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    /* Before the library is used: each process joins for itself. */
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        other_process(there[0], back[1]);
        return 0;
    }
    this_process(back[0], there[1], other);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    mistakes();
    snprintf(file, sizeof file, "%s/millpond/%s", folder, name);
    CHECK(unlink(file) == 0);
    *strrchr(file, '/') = 0;
    /* What they left of their out-of-memory errors. */
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s/errors.d'", file);
    CHECK(system(command) == 0);
    CHECK(rmdir(file) == 0 && rmdir(folder) == 0);
    return 0;
}
