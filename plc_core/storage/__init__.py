"""Files that are whole or not there; it knows nothing of what they hold.

paths            where things lie: the cache, the project, a path that a user gave
files            JSON and Parquet, written at once and verified when read
checksums, seals of a file's content, in the file itself
identity         of which run a file is, and from which place in it
manifest         the checksums of a folder's files
logs             that are added to line by line
cache            what was made once, kept by content
"""
