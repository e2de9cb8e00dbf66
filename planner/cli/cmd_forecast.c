/* heddle memory, heddle simulate: what the forecast of one plan says, part by part. */
#include "ask.h"
#include "planner/report/forecast.h"

static int run(const cli_arguments *a, heddle_status (*report)(const schedule_view *view, int json))
{
    cli_question q;
    cli_answer answer = {0};
    int code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : cli_report(report(&answer.view, a->json));
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

static int run_memory(const cli_arguments *a)
{
    return run(a, report_memory);
}

static int run_simulate(const cli_arguments *a)
{
    return run(a, report_simulation);
}

const cli_action cli_memory = {
    .synopsis = "usage: heddle memory MODEL -n 16 [--machine X] [--training [--recompute]] [options]\n"
                "       heddle memory MODEL --schedule FILE [--machine X] [options]\n"
                "\n"
                "  heddle memory hunyuanvideo -n 16 --machine 2x8xh100-nvlink+ib400\n"
                "\n"
                "What the fullest rank holds under the best plan, and at which stage it holds most.\n",
    .notes = "--memory 76G takes the best plan that fits, or exits with 3 and says what does not.\n"
             "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_memory,
};

const cli_action cli_simulate = {
    .synopsis =
        "usage: heddle simulate MODEL --mesh sp=8 [--machine X] [--method '*=ulysses'] [options]\n"
        "       heddle simulate MODEL --schedule FILE [--machine X] [options]\n"
        "       heddle simulate attention PROBLEM, heddle simulate linear-attention PROBLEM: one stage by itself\n"
        "\n"
        "  heddle simulate hunyuanvideo --mesh sp=8 --machine 8xh100-nvlink --method '*=ulysses'\n"
        "\n"
        "The seconds of a pass under the best plan, or by the methods that are given, part by part.\n",
    .notes = "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_simulate,
};
