"""python -m flashtri info"""

import argparse

from flashtri.info import info


def main():
    parser = argparse.ArgumentParser(prog="python -m flashtri")
    commands = parser.add_subparsers(required=True)
    commands.add_parser("info", help="what is compiled in, what this machine has, whether they fit")
    parser.parse_args()
    print(info())


if __name__ == "__main__":
    main()
