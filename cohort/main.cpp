#include "cohort/cohort.h"
int main(int argc, char** argv) { return cohort::run_cli(argc, argv); }
